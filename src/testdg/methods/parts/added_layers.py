"""Layers that a method adds to a network: they are hooked into its copy of the model and travel with that copy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from testdg.core.weights import frozen_copy
from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.models import VisionModel, load_model

IN_MODEL = "parts"
"""Name of the added layers among the modules of a model, which saved states know."""


class AddedLayer(nn.Module):
    """A layer that is added to a network; its methods are the hooks, so that a copy of the model has its own."""

    seen: list[Tensor] | None = None
    """Tensors that passes report for a loss, inside `watched`."""

    def report(self, value: Tensor) -> None:
        if self.seen is not None:
            self.seen.append(value)


def add_layers(model: VisionModel, layers: Sequence[AddedLayer]) -> None:
    """Make added layers, which hooks call already, part of a model."""
    model.add_module(IN_MODEL, nn.ModuleList(layers))


def added_layers(model: VisionModel) -> nn.ModuleList:
    layers = model.get_submodule(IN_MODEL)
    assert isinstance(layers, nn.ModuleList)
    return layers


def remove_added_layers(model: VisionModel) -> None:
    """Remove the layers that an earlier adapter has added to a model."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(getattr(hook, "__self__", None), AddedLayer):
                    del hooks[key]
    if hasattr(model, IN_MODEL):
        delattr(model, IN_MODEL)


@contextmanager
def watched(model: VisionModel) -> Iterator[list[list[Tensor]]]:
    """Collect what the added layers of a model report in the passes within, one list for each."""
    layers = [layer for layer in added_layers(model) if isinstance(layer, AddedLayer)]
    for layer in layers:
        layer.seen = []
    try:
        yield [layer.seen for layer in layers if layer.seen is not None]
    finally:
        for layer in layers:
            layer.seen = None


class AddedLayersAdapter(Adapter):
    """A method that adds layers to the network (`add_layers`, in `build`); layers of an earlier adapter are removed."""

    def __init__(self, model: str | nn.Module, **settings: Any) -> None:
        plain = frozen_copy(load_model(model))
        remove_added_layers(plain)
        super().__init__(plain, **settings)

    def export(self, folder: str | Path) -> None:
        """Refused: a checkpoint of the original network cannot store the added layers."""
        reason = "a checkpoint of the original network cannot store the added layers; use save()"
        raise UserError(f"{self.name} cannot be exported: {reason}", code="not-exportable")
