"""Training of a segmentation model for a benchmark, on its clear pictures: views, losses, learning rates."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from testdg.data.augmentation import jitter_colour
from testdg.data.segmentation.classes import IGNORED
from testdg.evaluation.map_training import class_weights, random_view
from testdg.evaluation.recipes import MapTuning
from testdg.evaluation.training_steps import Training, decayed


class MapTraining(Training[MapTuning]):
    """Training of a SegFormer."""

    def groups(self) -> list[dict[str, Any]]:
        """Encoder and decoder, the latter at a learning rate of its own."""
        network, decay, rate = self.model.network, self.recipe.weight_decay, self.recipe.learning_rate
        encoder, decoder = (decayed(network.get_submodule(name), decay) for name in ("segformer", "decode_head"))
        return [*encoder, *({**group, "lr": rate * self.recipe.head_rate} for group in decoder)]

    @cached_property
    def weights(self) -> Tensor:
        """How much each class weighs."""
        return class_weights(self.samples.labels, self.model.classes, self.recipe.balance).to(self.device)

    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """A smaller or larger part, a mirror image, other colours."""
        recipe = self.recipe
        scales = recipe.scale_from, recipe.scale_to
        images, labels = random_view(images, labels, scales, generator, mirror=recipe.flip)
        return jitter_colour(images, recipe.colour, generator) if recipe.colour else images, labels

    def losses(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted cross entropy and overlap, and the share of wrong pixels."""
        if logits.shape[-2:] != labels.shape[-2:]:  # the model resizes its input
            logits = F.interpolate(logits, labels.shape[-2:], mode="bilinear", align_corners=False)
        known = labels != IGNORED
        pixels = known.sum().clamp(min=1)
        loss = cross_entropy(logits, labels, self.weights, self.recipe.smoothing)
        if self.recipe.overlap:
            loss = loss + self.recipe.overlap * overlap_loss(logits, labels)
        return loss, ((logits.argmax(1) != labels) & known).sum() / pixels


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float = 0.0) -> Tensor:
    """Weighted mean over the pixels that have a class; zero where none has."""
    options = {"weight": weights, "ignore_index": IGNORED, "label_smoothing": smoothing}
    total = F.cross_entropy(logits, labels, reduction="sum", **options)  # type: ignore[arg-type]
    share = F.pad(weights, (0, IGNORED + 1 - len(weights)))[labels].sum()  # what is ignored weighs nothing
    return total / share.clamp(min=1e-6)


def overlap_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """One minus intersection over union of probabilities and labels, (N, H, W): the mean over classes that occur."""
    known = (labels != IGNORED)[:, None].float()
    truth = torch.zeros_like(logits).scatter_(1, torch.where(labels == IGNORED, 0, labels)[:, None], known)
    found = logits.softmax(1) * known
    shared, pixels = (found * truth).sum((0, 2, 3)), truth.sum((0, 2, 3))  # (C)
    lack = 1 - shared / (found.sum((0, 2, 3)) + pixels - shared).clamp(min=1)
    occurs = (pixels > 0).float()
    return (lack * occurs).sum() / occurs.sum().clamp(min=1)
