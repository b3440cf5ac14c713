"""REM: `attention` reads what the class token attends to, `ranking` is the loss over views with ever fewer tokens."""

from testdg.methods.rem.method import REM

__all__ = ["REM"]
