"""Continual-MAE: `masking` hides patch tokens, `hog` is what they are reconstructed as."""
