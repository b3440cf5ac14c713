"""Versatile: `labels` are pseudo-labels, filtered, corrected and weighted."""

from testdg.methods.versatile.method import Versatile

__all__ = ["Versatile"]
