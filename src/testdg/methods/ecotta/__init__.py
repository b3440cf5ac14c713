"""EcoTTA: `meta_networks` stand beside the parts of a frozen network."""
