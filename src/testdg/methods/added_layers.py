"""Layers that a method adds to a network: they are hooked into its copy of the model and travel with that copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from testdg.errors import UserError
from testdg.methods.adapter import Adapter
from testdg.methods.parts.teacher import frozen_copy
from testdg.models import VisionModel, load_model


class AddedLayer(nn.Module):
    """A layer that is added to a network; its methods are the hooks, so that a copy of the model has its own."""

    seen: list[Tensor] | None = None
    """What passes leave for a loss, while someone watches."""

    def report(self, value: Tensor) -> None:
        """Leave a tensor for whoever watches."""
        if self.seen is not None:
            self.seen.append(value)


def add_layers(model: VisionModel, parts: Sequence[AddedLayer]) -> None:
    """Make parts belong to a model, whose layers call them already."""
    model.add_module("parts", nn.ModuleList(parts))


def added_layers(model: VisionModel) -> nn.ModuleList:
    """The parts of a model."""
    parts = model.get_submodule("parts")
    assert isinstance(parts, nn.ModuleList)
    return parts


def remove_added_layers(model: VisionModel) -> None:
    """Take away the parts that an earlier adapter has put into a model."""
    for layer in model.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), AddedLayer)]:
                del hooks[key]
    if hasattr(model, "parts"):
        del model.parts


@contextmanager
def watched(model: VisionModel) -> Iterator[list[list[Tensor]]]:
    """Collect what the parts of a model tell in the passes within, one list for each."""
    parts = [part for part in added_layers(model) if isinstance(part, AddedLayer)]
    for part in parts:
        part.seen = []
    try:
        yield [part.seen for part in parts if part.seen is not None]
    finally:
        for part in parts:
            part.seen = None


class AddedLayersAdapter(Adapter):
    """A method that adds layers to the network, by `add_layers`. Those of an earlier adapter are not kept."""

    def __init__(self, model: str | nn.Module, **settings: Any) -> None:
        plain = frozen_copy(load_model(model))
        remove_added_layers(plain)
        super().__init__(plain, **settings)

    def export(self, folder: str | Path) -> None:
        """No ordinary checkpoint can hold the added layers."""
        raise UserError(
            f"{self.name} adds layers to the network, which no ordinary checkpoint can hold: keep them with save()"
        )
