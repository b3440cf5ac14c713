"""ViDA: `domain_adapters` are its two branches beside each layer."""
