"""TestDG aligned: `lean` saves memory in its backward pass."""

from testdg.methods.testdg_aligned.method import TestDGAligned

__all__ = ["TestDGAligned"]
