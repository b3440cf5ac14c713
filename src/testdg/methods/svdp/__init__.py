"""SVDP: `prompts` are offsets of single pixels."""

from testdg.methods.svdp.method import Svdp

__all__ = ["Svdp"]
