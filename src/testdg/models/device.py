"""Devices by name."""

import torch

from testdg.errors import UserError, unknown

DEVICES = ("auto", "cpu", "cuda", "mps")


def find_device(name: str) -> torch.device:
    """Choose a device; `auto` takes an accelerator where there is one."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if there[kind]))
    if not there[name]:
        raise UserError(f"device {name!r} is not available on this machine: use --device auto or cpu")
    return torch.device(name)
