"""Pseudo-labels: which to trust, how the source corrects the others, and which of them to learn from most."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RunningMean(nn.Module):
    """A running mean of tensors; one that is not finite is left out."""

    value: Tensor

    def __init__(self, start: Tensor, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("value", start)

    def update(self, value: Tensor) -> Tensor:
        """Take a tensor in and give the mean."""
        self.value.lerp_(torch.where(value.isfinite(), value, self.value), 1 - self.momentum)
        return self.value


class AdaptiveThresholds(nn.Module):
    """Confidence from which a label is reliable: the usual confidence, lower for classes that are seldom predicted."""

    def __init__(self, classes: int, momentum: float, device: torch.device) -> None:
        super().__init__()
        self.floor = 1 / classes  # a guess
        self.confidence = RunningMean(torch.full((), self.floor, device=device), momentum)
        self.profile = RunningMean(torch.full((classes,), self.floor, device=device), momentum)

    def update(self, probabilities: Tensor) -> Tensor:
        """Take predictions (N, C) in and give the threshold of each class."""
        confidence = self.confidence.update(probabilities.amax(1).mean())
        profile = self.profile.update(probabilities.mean(0))
        return (confidence * profile / profile.max()).clamp(min=self.floor)


def correct(teacher: Tensor, source: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Labels from probabilities (N, C), and which of them are reliable.

    Where the teacher is below the threshold of its class, the source is mixed in, each by its confidence; where the
    two predict the same class, the label counts as reliable after all.
    """
    (sure, classes), (source_sure, source_classes) = teacher.max(1), source.max(1)
    reliable = sure >= thresholds[classes]
    share = (sure / (sure + source_sure))[:, None]
    labels = torch.where(reliable[:, None], teacher, share * teacher + (1 - share) * source)
    return labels, reliable | (classes == source_classes)


def diversity_weights(labels: Tensor, usual: Tensor, temperature: float) -> Tensor:
    """Weight of each label (N, C): large where it is certain and unlike the usual one; 1 for a single image."""
    if len(labels) == 1:
        return labels.new_ones(1)
    unusual = 1 - F.cosine_similarity(labels, usual[None])
    certain = torch.xlogy(labels, labels).sum(1)
    return (_spread(unusual) * _spread(certain) / temperature).exp()


def _spread(values: Tensor) -> Tensor:
    """Stretch values over [0, 1]; all ones where they are the same."""
    low, high = values.aminmax()
    return torch.where(high > low, (values - low) / (high - low), 1.0)
