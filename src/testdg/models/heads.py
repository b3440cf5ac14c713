"""Any network becomes a `VisionModel`: its head, the layer that computes its logits, is found in a pass."""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models.blocks import find_logits, pooled, watching
from testdg.models.model import VisionModel
from testdg.models.preprocessing import Preprocessing
from testdg.models.segformer import SegmentationModel
from testdg.models.untrusted import first_line

_SIDES = (64, 32, 224, 28, 128, 96, 384, 16)
"""Sizes of images that are tried with a network of unknown input size."""


class Head(NamedTuple):
    """The name of the head, whether its output are the logits, and the number of classes; no name without a head."""

    name: str | None
    exact: bool
    classes: int


@torch.no_grad()
def find_head(network: nn.Module, preprocessing: Preprocessing, name: str, head: str | None = None) -> Head:
    """Find the layer whose output is the logits of an image, unless one is named.

    If the output becomes the logits in further steps (a scale, an activation), it is the last layer with as many
    outputs. If no image passes, it is the last linear layer, with a warning.
    """
    modules = dict(network.named_modules())
    layers: dict[nn.Module, str] = {
        layer: own
        for own, layer in modules.items()
        if isinstance(layer, nn.Linear)
        or (isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1)
    }
    if head is not None and modules.get(head) not in layers:
        found = f"is a {type(modules[head]).__name__}" if head in modules else "does not exist"
        last = ", ".join(list(layers.values())[-5:]) or "none"
        raise UserError(f"layer {head!r} of {name} {found}; its linear layers are {last}", code="no-head")
    seen: dict[str, Tensor] = {}

    def note(layer: nn.Module, _: Tensor, output: Tensor) -> None:
        seen.pop(layers[layer], None)  # of several passes through a layer, the last
        seen[layers[layer]] = pooled(output, layer)

    with watching(*layers, note=note):
        logits = _try(network, preprocessing, seen)
    if isinstance(logits, Exception):
        return _unseen(layers, name, head, first_line(logits))
    if logits.ndim != 2:
        shape = tuple(logits.shape)
        raise UserError(f"{name} must return logits of shape (images, classes); got {shape}", code="bad-network")
    alike = [own for own, output in seen.items() if output.shape == logits.shape]
    same = alike if logits.is_meta else [own for own in alike if torch.allclose(seen[own], logits)]
    chosen = head or next(reversed(same or alike), None)
    return Head(chosen, chosen in same, logits.shape[1])


def _try(network: nn.Module, preprocessing: Preprocessing, seen: dict[str, Tensor]) -> Tensor | Exception:
    """The logits of an image of noise, of the model's own size or of the first accepted one; or the first error."""
    first = next(network.parameters(), torch.empty(0, device="cpu"))
    reasons: list[Exception] = []
    sizes = [preprocessing.input_size] if preprocessing.input_size else [(side, side) for side in _SIDES]
    for size in sizes:
        seen.clear()
        generator = torch.Generator("cpu").manual_seed(0)
        noise = torch.rand(1, len(preprocessing.mean), *size, generator=generator, device="cpu")
        try:
            return find_logits(network(noise.to(first)))
        except UserError:
            raise
        except Exception as error:  # networks raise anything for an image of a wrong size
            reasons.append(error)
    return reasons[0]


def _unseen(layers: dict[nn.Module, str], name: str, head: str | None, reason: str) -> Head:
    """The named layer, or a guess, of a network that accepted no image."""
    linear = [own for layer, own in layers.items() if isinstance(layer, nn.Linear)]
    size = "give its size with preprocessing=Preprocessing((height, width))"
    remedy = f"{size}, or name the classifier with head=..."
    chosen = head or next(reversed(linear), None)
    if chosen is None:
        problem = f"{name} has no linear classifier, and accepts no image ({reason})"
        raise UserError(f"{problem}: {remedy}", code="bad-network")
    if head is None:
        guess = f"{chosen!r} is assumed to be the head of {name}, which accepts no image ({reason})"
        warnings.warn(f"{guess}: {remedy}", stacklevel=5)
    (classes,) = (layer.get_parameter("weight").shape[0] for layer, own in layers.items() if own == chosen)
    return Head(chosen, True, classes)


def wrap(network: nn.Module, preprocessing: Preprocessing, head: str | None, name: str) -> VisionModel:
    """Split a network into encoder and head; a SegFormer for segmentation is recognised by its parts."""
    if hasattr(network, "segformer") and hasattr(network, "decode_head"):
        return SegmentationModel(network, head or "decode_head.classifier", preprocessing, name).eval()
    found = find_head(network.eval(), preprocessing, name, head)
    model = VisionModel(network, found.name, preprocessing, name, classes=found.classes, exact=found.exact)
    return model.eval()
