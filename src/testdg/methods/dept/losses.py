"""What DePT learns by: projections of prompts and features, how alike and how different they are, and neighbours."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.methods.stateful import PlainState

NARROW = 256
"""Width of the bottleneck of a projection."""


def wide(width: int) -> int:
    """Width of the other layers of a projection: 2048, as published for tokens of 768 values; less for narrow ones."""
    return min(2048, 8 * width)


class Projection(nn.Module):
    """Two layers with a GELU between, length one, and a linear layer whose rows have length one."""

    def __init__(self, width: int, generator: Generator, device: torch.device) -> None:
        super().__init__()
        self.inner = nn.utils.skip_init(nn.Linear, width, wide(width), device=device)  # type: ignore[no-untyped-call]
        self.outer = nn.utils.skip_init(nn.Linear, wide(width), NARROW, device=device)  # type: ignore[no-untyped-call]
        self.rows = nn.Parameter(torch.empty(wide(width), NARROW, device=device))
        for weight in (self.inner.weight, self.outer.weight, self.rows):
            nn.init.trunc_normal_(weight, std=0.02, generator=generator)
        for bias in (self.inner.bias, self.outer.bias):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., wide)."""
        narrow = F.normalize(self.outer(F.gelu(self.inner(x))).float(), dim=-1)
        return F.linear(narrow, F.normalize(self.rows, dim=1))


def stage_weights(stages: int, device: torch.device) -> Tensor:
    """Later stages count more: softmax of 1, 2, ..."""
    return torch.arange(1.0, stages + 1, device=device).softmax(0)


def agreement(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of one minus the cosine of each pair of prompts, (N, P, D)."""
    return (1 - F.cosine_similarity(student, teacher, dim=-1)).mean()


def sameness(prompts: Tensor) -> Tensor:
    """Minus the mean of one minus the cosine over all pairs of an image's prompts (N, P, D), with themselves too."""
    unit = F.normalize(prompts, dim=-1)
    apart = 1 - unit @ unit.mT
    return -(apart - torch.diag_embed(apart.diagonal(dim1=1, dim2=2))).mean()


def imbalance(logits: Tensor) -> Tensor:
    """Minus the entropy of the mean prediction."""
    mean = logits.float().softmax(1).movedim(1, -1).flatten(0, -2).mean(0)
    return (mean * (mean + 1e-8).log()).sum()


class Centre(nn.Module):
    """Cross-entropy between projected features of student and teacher, the teacher's less a running mean."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.value: Tensor = nn.Buffer(torch.zeros(wide(width), device=device))

    def loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Mean over the images; (N, wide) each."""
        target = ((teacher - self.value) / 0.07).softmax(1)
        loss = -(target * (student / 0.1).log_softmax(1)).sum(1).mean()
        mean = teacher.mean(0)
        self.value.lerp_(torch.where(mean.isfinite(), mean, self.value), 0.1)
        return loss


class Neighbours(PlainState):
    """A ring of features and predictions; a pseudo-label is the class of the mean prediction of the nearest ones."""

    plain = ("count",)
    uncopied: ClassVar[tuple[str, ...]] = ("features", "predictions")
    """They are replaced, never written in place."""

    def __init__(self, capacity: int, width: int, classes: int, device: torch.device) -> None:
        super().__init__()
        self.count = 0
        self.features: Tensor = nn.Buffer(torch.zeros(capacity, width, device=device))
        self.predictions: Tensor = nn.Buffer(torch.zeros(capacity, classes, device=device))

    def add(self, features: Tensor, predictions: Tensor) -> None:
        """Take entries (M, D) and (M, C) in, over the oldest ones; of more than fit, the last."""
        capacity = len(self.features)
        features, predictions = features[-capacity:], predictions[-capacity:]
        places = torch.arange(self.count, self.count + len(features), device=features.device) % capacity
        self.features = self.features.index_copy(0, places, F.normalize(features.float(), dim=1))
        self.predictions = self.predictions.index_copy(0, places, predictions.float())
        self.count += len(features)

    def label(self, features: Tensor, nearest: int) -> Tensor:
        """Classes of features (M, D)."""
        held = min(self.count, len(self.features))
        alike = F.normalize(features.float(), dim=1) @ self.features[:held].T
        which = alike.topk(min(nearest, held), 1).indices
        return self.predictions[which].mean(1).argmax(1)
