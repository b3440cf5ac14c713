"""`OnlineModel`: what an adapter and a guard around one have in common, and how a saved one is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from testdg.core.adapter import Adapter
from testdg.core.state import read_folder

if TYPE_CHECKING:
    from testdg.core.guard import Guard, OnDecision


class OnlineModel(Protocol):
    """A model that predicts a stream and learns from it: an `Adapter`, or a `Guard` around one.

    Code that runs a stream takes an `OnlineModel` and never asks which of the two it is. What belongs to the method
    alone (its name, settings, device, export) is found at `adapter`.
    """

    @property
    def adapter(self) -> Adapter:
        """The adapter itself; of a guard, the one inside."""

    @property
    def guard(self) -> Guard | None:
        """The guard itself, for its snapshots and its pause; None without one."""

    @property
    def diagnostics(self) -> Mapping[str, Tensor | float | bool | str]:
        """Numbers of the last batch, by name; they may still be on the device."""

    @property
    def learnt(self) -> bool:
        """Whether the model has learnt from the last batch, and the step was not undone."""

    @property
    def decision(self) -> str:
        """Why the guard did not learn from the last batch, or undid the step; "" where it did not interfere."""

    @property
    def guard_counts(self) -> Mapping[str, int] | None:
        """How often the guard did what (`skip`, `roll_back`, `fall_back`); None without a guard."""

    def event(self) -> dict[str, str | int]:
        """What the guard adds to the event of the last batch: keys that begin with `guard`."""

    def __call__(self, images: Tensor) -> Tensor:
        """Predict a batch of images in [0, 1], (N, C, H, W), and learn from it."""

    def predict(self, images: Tensor) -> Tensor:
        """Predict a batch and change nothing."""

    def warm_up(self, batches: Iterable[Tensor | tuple[Tensor, Tensor]]) -> None:
        """Learn from source images, once, before the stream."""

    def reset(self) -> None:
        """Go back to the source."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next batch depends on."""

    def values(self) -> dict[str, Any]:
        """Every plain value that the next batch depends on, ready for JSON."""

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `values` gave."""

    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> None:
        """Write everything that the next batch depends on, and a note, to a folder."""


def load_online(folder: str | Path, model: str | nn.Module, on_decision: OnDecision = None) -> OnlineModel:
    """Load a saved adapter, with its guard if it had one, around the model that the adapter was made from.

    `on_decision` becomes the callback of the guard.
    """
    from testdg.core.guard import Guard

    tensors, about = read_folder(Path(folder))
    adapter = Adapter.like_saved(folder, about, model)
    online: OnlineModel = adapter
    if (own := about["values"].get("guard")) is not None:
        online = Guard(adapter, patience=own["patience"], snapshots=own["max_snapshots"], on_decision=on_decision)
    online.load_state(tensors, about["values"])
    return online
