"""EcoTTA: `meta_networks` stand beside the parts of a frozen network."""

from testdg.methods.ecotta.method import Ecotta

__all__ = ["Ecotta"]
