"""The version, which numbers and files are marked with."""

import platform

__version__ = "0.2.0"


def versions() -> dict[str, str]:
    """Versions of what computes a result."""
    import numpy
    import torch

    others = {"torch": torch.__version__, "numpy": numpy.__version__, "python": platform.python_version()}
    return {"testdg": __version__, **others}
