"""Devices by name."""

import torch

from testdg.errors import UserError, unknown

DEVICES = ("auto", "cpu", "cuda", "mps")


def find_device(name: str) -> torch.device:
    """The device of a name; `auto` is an accelerator if there is one."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if not available[name]:
        raise UserError(f"device {name!r} is not available on this machine: use --device auto or cpu", code="no-device")
    return torch.device(name)
