"""Any network becomes a `VisionModel`: its head, the layer that gives its logits, is found in a pass."""

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
"""Of the images that a network is tried with whose own size nobody has told."""


class Head(NamedTuple):
    """The name of a layer, whether what leaves it are the logits, and their number; no name where there is no layer."""

    name: str | None
    exact: bool
    classes: int


def can_be_head(layer: nn.Module) -> bool:
    """Whether a layer is linear in what enters it, place by place: a Linear or a 1 x 1 convolution."""
    return isinstance(layer, nn.Linear) or (
        isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
    )


@torch.no_grad()
def find_head(network: nn.Module, preprocessing: Preprocessing, name: str, head: str | None = None) -> Head:
    """Find the layer that gives the logits of an image, unless one is named.

    Of layers whose output becomes the logits in further steps (a scale, an activation), the last one with as many
    outputs counts. Where no image passes, it is the last linear layer, said aloud.
    """
    layers = {layer: own for own, layer in network.named_modules() if can_be_head(layer)}
    _check_name(network, list(layers.values()), name, head)
    seen: dict[str, Tensor] = {}

    def note(layer: nn.Module, _: Tensor, output: Tensor) -> None:
        seen.pop(layers[layer], None)  # of several passes through a layer, the last
        seen[layers[layer]] = pooled(output, layer)

    with watching(*layers, note=note):
        logits = _try(network, preprocessing, seen)
    if isinstance(logits, Exception):
        return _unseen(layers, name, head, first_line(logits))
    if logits.ndim != 2:
        raise UserError(f"{name} must give logits of (images, classes); one image gave {tuple(logits.shape)}")
    alike = [own for own, output in seen.items() if output.shape == logits.shape]
    same = alike if logits.is_meta else [own for own in alike if torch.allclose(seen[own], logits)]
    found = head or next(reversed(same or alike), None)
    return Head(found, found in same, logits.shape[1])


def _try(network: nn.Module, preprocessing: Preprocessing, seen: dict[str, Tensor]) -> Tensor | Exception:
    """The logits of an image of noise, of the model's own size or of the first that the network takes; or its error."""
    first = next(network.parameters(), torch.empty(0, device="cpu"))
    reasons: list[Exception] = []
    for side in (preprocessing.input_size,) if preprocessing.input_size else [(s, s) for s in _SIDES]:
        seen.clear()
        generator = torch.Generator("cpu").manual_seed(0)
        noise = torch.rand(1, len(preprocessing.mean), *side, generator=generator, device="cpu")
        try:
            return find_logits(network(noise.to(first)))
        except UserError:
            raise
        except Exception as error:  # whatever a network says to an image of this size
            reasons.append(error)
    return reasons[0]


def _unseen(layers: dict[nn.Module, str], name: str, head: str | None, reason: str) -> Head:
    """The named layer, or a guess, of a network that no image has passed."""
    wanted = [(layer, own) for layer, own in layers.items() if own == head or isinstance(layer, nn.Linear)]
    remedy = "give its size with preprocessing=Preprocessing((height, width)), or name the classifier with head=..."
    if not wanted:
        raise UserError(f"{name} has no linear classifier, and no image passes it ({reason}): {remedy}")
    layer, own = next(((layer, own) for layer, own in wanted if own == head), wanted[-1])
    if head is None:
        guess = f"{own!r} is taken for the head of {name}, which no image passes ({reason})"
        warnings.warn(f"{guess}: {remedy}", stacklevel=5)
    return Head(own, True, layer.get_parameter("weight").shape[0])


def _check_name(network: nn.Module, possible: list[str], name: str, head: str | None) -> None:
    if head is not None and head not in possible:
        layers = dict(network.named_modules())
        found = f"is a {type(layers[head]).__name__}" if head in layers else "does not exist"
        raise UserError(f"layer {head!r} of {name} {found}; its linear layers are {', '.join(possible[-5:]) or 'none'}")


def wrap(network: nn.Module, preprocessing: Preprocessing, head: str | None, name: str) -> VisionModel:
    """See a network as encoder + head; a SegFormer for segmentation is told by its parts."""
    if hasattr(network, "segformer") and hasattr(network, "decode_head"):
        return SegmentationModel(network, head or "decode_head.classifier", preprocessing, name).eval()
    found = find_head(network.eval(), preprocessing, name, head)
    model = VisionModel(network, found.name, preprocessing, name, classes=found.classes, exact=found.exact)
    return model.eval()
