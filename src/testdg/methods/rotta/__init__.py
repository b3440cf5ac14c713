"""RoTTA: `memory` holds images, balanced over classes."""

from testdg.methods.rotta.method import Rotta

__all__ = ["Rotta"]
