"""Continual test-time adaptation of vision models: a deployed model adapts to the stream that it sees."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from testdg.version import __version__

if TYPE_CHECKING:
    from testdg.core.guard import guard
    from testdg.data.benchmarks import load_benchmark
    from testdg.methods import Adapter, adapt
    from testdg.models import Preprocessing, load_model
    from testdg.runs import adapt_stream

__all__ = ["Adapter", "Preprocessing", "__version__", "adapt", "adapt_stream", "guard", "load_benchmark", "load_model"]

_HOMES = {
    "Adapter": "testdg.methods",
    "adapt": "testdg.methods",
    "Preprocessing": "testdg.models",
    "load_model": "testdg.models",
    "load_benchmark": "testdg.data.benchmarks",
    "guard": "testdg.core.guard",
    "adapt_stream": "testdg.runs",
}


def __getattr__(name: str) -> Any:
    """Import late, so that `testdg --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'testdg' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """What is public, whether it is imported already or not."""
    return sorted(__all__)
