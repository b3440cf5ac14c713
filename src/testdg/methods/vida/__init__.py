"""ViDA: `domain_adapters` are its two branches beside each layer."""

from testdg.methods.vida.method import ViDA

__all__ = ["ViDA"]
