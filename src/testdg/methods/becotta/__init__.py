"""BECoTTA: `experts` stand behind the blocks of a transformer."""

from testdg.methods.becotta.method import Becotta

__all__ = ["Becotta"]
