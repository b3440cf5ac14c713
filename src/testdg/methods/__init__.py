"""Methods: the Adapter contract and every method that keeps it."""

from testdg.methods.adapter import Adapter, TeacherAdapter
from testdg.methods.parts.learner import Learner
from testdg.methods.registry import adapt, find_method, methods, register
from testdg.methods.settings import Search, Settings, describe_settings, first_things_first, option, parse_settings
from testdg.methods.stateful import PlainState

__all__ = [
    "Adapter",
    "Learner",
    "PlainState",
    "Search",
    "Settings",
    "TeacherAdapter",
    "adapt",
    "describe_settings",
    "find_method",
    "first_things_first",
    "methods",
    "option",
    "parse_settings",
    "register",
]
