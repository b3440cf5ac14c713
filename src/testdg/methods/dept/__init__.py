"""DePT: `prompts` are the tokens that every stage gets, `losses` what they learn by."""

from testdg.methods.dept.method import Dept

__all__ = ["Dept"]
