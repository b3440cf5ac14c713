"""How good a prompt is: sure predictions, and class tokens as they are on the source."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from testdg.methods.parts.blocks import hooked, transformer_blocks
from testdg.methods.parts.entropy import entropy
from testdg.methods.parts.prompts import moments
from testdg.models import Output, VisionModel

USUAL_BATCH = 64
"""Images for which the weight of the statistics was chosen."""


class Seen(NamedTuple):
    """Logits, features (N, D) and all class tokens of a pass, (N, ...)."""

    logits: Tensor
    features: Tensor
    tokens: Tensor


def see_class_tokens(model: VisionModel, images: Tensor) -> Seen:
    """Run a model; class tokens are those that the first LayerNorm of each block but one gives, then the features."""
    class_tokens: dict[nn.Module, Tensor] = {}

    def note(layer: nn.Module, _: Any, output: Tensor) -> None:
        class_tokens.setdefault(layer, output[:, 0].float())

    blocks = transformer_blocks(model)[1:]
    norms = [next(layer for layer in block.modules() if isinstance(layer, nn.LayerNorm)) for block in blocks]
    with hooked(*((norm, note) for norm in norms)):
        output: Output = model(images)
    features = output.features.float()
    return Seen(output.logits.float(), features, torch.cat([*(class_tokens[norm] for norm in norms), features], 1))


def fitness(seen: Seen, source: Tensor, weight: float) -> Tensor:
    """Sum of entropies, and squared distances of mean and deviation over images to the source's; small is good."""
    distance = (moments(seen.tokens) - source).square().sum()
    return entropy(seen.logits).sum() + weight * len(seen.logits) / USUAL_BATCH * distance
