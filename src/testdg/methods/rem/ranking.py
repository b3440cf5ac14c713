"""The loss over views of an image from the easiest to the hardest: agree, and be less sure of the harder one."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from testdg.methods.parts.entropy import entropy, soft_cross_entropy


def consistency(views: Sequence[Tensor]) -> Tensor:
    """Cross-entropy of each view to each easier one, which stands still; mean over images, sum over pairs."""
    losses = [soft_cross_entropy(hard, easy.detach()).mean() for easy, hard in combinations(views, 2)]
    return torch.stack(losses).sum()


def ranking(views: Sequence[Tensor], margin: float) -> Tensor:
    """By how much an easier view has more entropy than a harder one, which stands still, less a margin."""
    entropies = [entropy(logits) for logits in views]
    losses = [(easy - hard.detach() + margin).clamp(min=0).mean() for easy, hard in combinations(entropies, 2)]
    return torch.stack(losses).sum()
