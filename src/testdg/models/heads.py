"""The head of a network: the layer that gives its logits, which a pass finds."""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models.preprocessing import Preprocessing

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


def find_logits(output: Any) -> Tensor:
    """Of what a network gives, the logits."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits  # type: ignore[no-any-return]
    raise UserError(f"the network must return a tensor of logits; it returned {type(output).__name__}")


def pooled(values: Tensor, layer: nn.Module) -> Tensor:
    """What enters or leaves a layer, as one row an image: averaged over the places of a map, or over tokens."""
    if values.ndim <= 2:
        return values
    return values.flatten(2).mean(2) if isinstance(layer, nn.Conv2d) else values.flatten(1, -2).mean(1)


@contextmanager
def watching(*layers: nn.Module, note: Callable[[nn.Module, Tensor, Any], None]) -> Iterator[None]:
    """Tell `note` what enters and leaves layers in the passes within; passes of other threads are not ours."""
    own = threading.get_ident()

    def hook(layer: nn.Module, inputs: tuple[Any, ...], *rest: Any) -> None:
        if threading.get_ident() != own:  # which may find the hook half removed, and hand in less
            return
        named, output = rest
        note(layer, next(value for value in (*inputs, *named.values()) if isinstance(value, Tensor)), output)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(hook, with_kwargs=True))
        yield


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
        logits, reason = _try(network, preprocessing, seen)
    if logits is None:
        return _unseen(layers, name, head, reason)
    if logits.ndim != 2:
        raise UserError(f"{name} must give logits of (images, classes); one image gave {tuple(logits.shape)}")
    alike = [own for own, output in seen.items() if output.shape == logits.shape]
    same = alike if logits.is_meta else [own for own in alike if torch.allclose(seen[own], logits)]
    found = head or next(reversed(same or alike), None)
    return Head(found, found in same, logits.shape[1])


def _try(
    network: nn.Module, preprocessing: Preprocessing, seen: dict[str, Tensor]
) -> tuple[Tensor | None, Exception | None]:
    """The logits of an image of noise, of the model's own size or of the first that the network takes."""
    first = next(network.parameters(), torch.empty(0))
    reason: Exception | None = None
    for side in (preprocessing.input_size,) if preprocessing.input_size else [(s, s) for s in _SIDES]:
        seen.clear()
        noise = torch.rand(1, len(preprocessing.mean), *side, generator=torch.Generator().manual_seed(0))
        try:
            return find_logits(network(noise.to(first))), None
        except UserError:
            raise
        except Exception as error:  # whatever a network says to an image of this size
            reason = reason or error
    return None, reason


def _unseen(layers: dict[nn.Module, str], name: str, head: str | None, reason: Exception | None) -> Head:
    """The named layer, or a guess, of a network that no image has passed."""
    wanted = [(layer, own) for layer, own in layers.items() if own == head or isinstance(layer, nn.Linear)]
    line = next(iter(str(reason).splitlines()), "") or type(reason).__name__
    remedy = "give its size with preprocessing=Preprocessing((height, width)), or name the classifier with head=..."
    if not wanted:
        raise UserError(f"{name} has no linear classifier, and no image passes it ({line}): {remedy}")
    layer, own = next(((layer, own) for layer, own in wanted if own == head), wanted[-1])
    if head is None:
        guess = f"{own!r} is taken for the head of {name}, which no image passes ({line})"
        warnings.warn(f"{guess}: {remedy}", stacklevel=5)
    return Head(own, True, layer.get_parameter("weight").shape[0])


def _check_name(network: nn.Module, possible: list[str], name: str, head: str | None) -> None:
    if head is not None and head not in possible:
        layers = dict(network.named_modules())
        found = f"is a {type(layers[head]).__name__}" if head in layers else "does not exist"
        raise UserError(f"layer {head!r} of {name} {found}; its linear layers are {', '.join(possible[-5:]) or 'none'}")
