"""OBAO: `memory` is its buffer of test images, `class_graph` the relations between classes."""

from testdg.methods.obao.method import Obao

__all__ = ["Obao"]
