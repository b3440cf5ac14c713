"""Formulas that several methods share, written out in plain torch."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.models import VisionModel


def literal_loss(row: Tensor, loss: str) -> Tensor:
    """Entropy of the logits of one image, or COME's of the opinion that they are, by the formulas, in double."""
    row = row.double()
    if loss == "come":
        length = row.norm()
        evidence = (row / length * float(length.detach())).exp()
        masses = torch.cat([evidence, evidence.new_tensor([len(row)])]) / (evidence.sum() + len(row))
    else:
        masses = row.exp() / row.exp().sum()
    return -(masses * masses.log()).sum()


@torch.no_grad()
def literal_views(model: VisionModel, images: Tensor, ratios: Sequence[float]) -> Tensor:
    """Mean probabilities over square images of several sizes and their mirror images, view by view."""
    side, found = images.shape[-1], []
    for ratio in ratios:
        size = int(side * ratio)
        view = F.interpolate(images, (size, size), mode="bilinear", antialias=size < side)
        for turn in (lambda x: x, lambda x: x.flip(-1)):
            logits = F.interpolate(model(turn(view)).logits, (side, side), mode="bilinear")
            found.append(turn(logits.softmax(1)))
    return torch.stack(found).mean(0)


@torch.no_grad()
def average(mean: nn.Module, module: nn.Module, momentum: float) -> None:
    """Move an average towards a module, parameter by parameter."""
    for mine, other in zip(mean.parameters(), module.parameters(), strict=True):
        mine.copy_(momentum * mine + (1 - momentum) * other)


def assert_close(one: nn.Module, other: nn.Module, rtol: float, atol: float) -> None:
    """The parameters of two modules are nearly the same."""
    for (name, found), expected in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=lambda text, n=name: f"{n}: {text}")


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether the parameters of two modules are the same, bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
