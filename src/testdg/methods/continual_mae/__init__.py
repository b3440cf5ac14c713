"""Continual-MAE: `masking` hides patch tokens, `hog` is what they are reconstructed as."""

from testdg.methods.continual_mae.method import ContinualMAE

__all__ = ["ContinualMAE"]
