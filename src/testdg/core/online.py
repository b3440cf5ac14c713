"""`OnlineModel`: what an adapter and a guard around one have in common, and how a saved one is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from testdg.core.adapter import Adapter
from testdg.core.guard import Guard, OnDecision
from testdg.core.state import Values, read_folder


class OnlineModel(Protocol):
    """A model that predicts a stream and learns from it: an `Adapter`, or a `Guard` around one.

    Code that runs a stream takes an `OnlineModel` and never asks which of the two it is. What belongs to the method
    alone (its name, settings, device, export) is found at `adapter`.
    """

    @property
    def adapter(self) -> Adapter: ...
    @property
    def guard(self) -> Guard | None: ...
    @property
    def diagnostics(self) -> Mapping[str, Tensor | float | bool | str]: ...
    @property
    def learnt(self) -> bool: ...
    @property
    def decision(self) -> str: ...
    @property
    def guard_counts(self) -> Mapping[str, int] | None: ...
    def event(self) -> dict[str, str | int]: ...
    def __call__(self, images: Tensor) -> Tensor: ...
    def predict(self, images: Tensor) -> Tensor: ...
    def warm_up(self, batches: Iterable[Tensor | tuple[Tensor, Tensor]]) -> None: ...
    def reset(self) -> None: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def values(self) -> Values: ...
    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None: ...
    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> None: ...


def load_online(folder: str | Path, model: str | nn.Module, on_decision: OnDecision = None) -> OnlineModel:
    """Load a saved adapter, with its guard if it had one, around the model that the adapter was made from.

    `on_decision` becomes the callback of the guard.
    """
    tensors, about = read_folder(Path(folder))
    adapter = Adapter.like_saved(folder, about, model)
    online: OnlineModel = adapter
    if (own := about["values"].get("guard")) is not None:
        online = Guard(adapter, patience=own["patience"], snapshots=own["max_snapshots"], on_decision=on_decision)
    online.load_state(tensors, about["values"])
    return online
