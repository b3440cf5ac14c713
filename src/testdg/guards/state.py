"""What a guard itself keeps in a saved state, beside that of its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from testdg.guards.guarded import Guard

PREFIX = "guard."
COUNTS = ("batch", "seen", "troubles", "healthy", "pause", "passes", "counted", "trust", "moved")


def own_tensors(guard: Guard) -> dict[str, Tensor]:
    """Every tensor of a guard that the next batch depends on."""
    tensors = {f"ring.{key}": value for key, value in guard.snapshots.tensors().items()}
    for name in ("inputs", "probe"):
        tensors |= {f"{name}.{key}": value for key, value in getattr(guard, name).state_dict().items()}
    if guard.recent is not None:
        tensors["recent"] = guard.recent
    if guard.snapshots:
        tensors |= {f"moved.{name}": value for name, value in guard.movement.before.items()}
    return {f"{PREFIX}{name}": value for name, value in tensors.items()}


def own_values(guard: Guard) -> dict[str, Any]:
    """Every plain value of a guard that the next batch depends on."""
    return {
        **{key: getattr(guard, key) for key in COUNTS},
        "window": guard.mix.window,
        "one_sided": guard.mix.one_sided,
        "patience": guard.patience,
        "snapshots": guard.snapshots.kept.maxlen,
        "origin": guard.probe.origin,
        "ring": guard.snapshots.values(),
    }


def put_back(guard: Guard, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Put back what `own_tensors`, here without their prefix, and `own_values` gave."""
    device = guard.adapter.model.device
    guard.inputs.thumbnails.copy_(tensors["inputs.thumbnails"])
    for key in ("images", "classes", "sureness"):
        value = tensors.get(f"probe.{key}")
        setattr(guard.probe, key, None if value is None else value.to(device, copy=True))
    recent = tensors.get("recent")
    guard.recent = None if recent is None else recent.to(device, copy=True)
    guard.probe.origin = values["origin"]
    ring = {key.removeprefix("ring."): value for key, value in tensors.items() if key.startswith("ring.")}
    guard.snapshots.load(ring, values["ring"])
    if guard.snapshots:
        for name, before in guard.movement.before.items():
            before.copy_(tensors[f"moved.{name}"])
    for key in COUNTS:
        setattr(guard, key, values[key])
    guard.mix.window, guard.mix.one_sided = list(values["window"]), values["one_sided"]
