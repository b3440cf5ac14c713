"""What a guard keeps beside its adapter: decisions, healthy states, counts; how they are saved and put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from testdg.core.adapter import Adapter

if TYPE_CHECKING:
    from testdg.core.guard.guarded import Guard

PREFIX = "guard."
COUNTS = ("batch", "seen", "troubles", "healthy", "pause", "passes", "counted", "trust", "moved")
Action = Literal["skip", "roll back", "fall back"]


@dataclass(frozen=True)
class Decision:
    """What the guard did at a batch, and why."""

    batch: int
    action: Action
    reason: str


OnDecision = Callable[[Decision], None] | None


def copied(adapter: Adapter) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an adapter as it is now."""
    return {name: value.detach().clone() for name, value in adapter.tensors().items()}, adapter.values()


def own_tensors(guard: Guard) -> dict[str, Tensor]:
    """Every tensor of a guard that the next batch depends on."""
    tensors: dict[str, Tensor] = {}
    for number, (state, _) in enumerate(guard.snapshots):
        tensors |= {f"ring.{number}.{key}": value for key, value in state.items()}
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
        "snapshots": guard.snapshots.maxlen,
        "origin": guard.probe.origin,
        "ring": [values for _, values in guard.snapshots],
        "counts": guard.counts,
        "decisions": [asdict(decision) for decision in guard.decisions],
    }


def put_back(guard: Guard, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Put back what `own_tensors` and `own_values` gave."""
    mine, device = _below(PREFIX, tensors), guard.adapter.model.device
    guard.inputs.thumbnails.copy_(mine["inputs.thumbnails"])
    for key in ("images", "classes", "sureness"):
        value = mine.get(f"probe.{key}")
        setattr(guard.probe, key, None if value is None else value.to(device, copy=True))
    recent = mine.get("recent")
    guard.recent = None if recent is None else recent.to(device, copy=True)
    guard.probe.origin = values["origin"]
    guard.snapshots.clear()
    for number, kept in enumerate(values["ring"]):
        state = {key: value.clone() for key, value in _below(f"ring.{number}.", mine).items()}
        guard.snapshots.append((state, kept))
    if guard.snapshots:
        for name, before in guard.movement.before.items():
            before.copy_(mine[f"moved.{name}"])
    for key in COUNTS:
        setattr(guard, key, values[key])
    guard.mix.window, guard.mix.one_sided = list(values["window"]), values["one_sided"]
    guard.counts.update(values["counts"])
    guard.decisions.clear()
    guard.decisions.extend(Decision(**decision) for decision in values["decisions"])


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names begin so, without that beginning."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
