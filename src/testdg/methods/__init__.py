"""Methods: the `Adapter` contract and every method that implements it."""

from testdg.core.adapter import Adapter, TeacherAdapter
from testdg.core.learner import Learner
from testdg.core.registry import adapt, find_method, methods, register
from testdg.core.settings import Presets, Search, Settings, describe_settings, option, order_for_display, typed_settings
from testdg.core.stateful import PlainState

__all__ = [
    "Adapter",
    "Learner",
    "PlainState",
    "Presets",
    "Search",
    "Settings",
    "TeacherAdapter",
    "adapt",
    "describe_settings",
    "find_method",
    "methods",
    "option",
    "order_for_display",
    "register",
    "typed_settings",
]
