"""Normalisation layers: finding, replacing and training them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from testdg.models import VisionModel
from testdg.models.alignment import release_norms
from testdg.models.blocks import holding


def batch_norms(model: VisionModel) -> list[nn.Module]:
    return [layer for _, layer in model.norm_layers() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def aligned_norms(model: VisionModel) -> list[str]:
    """Names, within the network, of BatchNorm layers that an alignment can stand in for."""
    return [
        name
        for name, layer in model.network.named_modules()
        if isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.track_running_stats
    ]


def use_batch_statistics(model: VisionModel) -> None:
    """Make BatchNorm layers normalise by the statistics of the batch; stored statistics are not used."""
    release_norms(model)
    for layer in batch_norms(model):
        layer.train()
        layer.track_running_stats = False  # type: ignore[assignment]


def affine_parameters(model: VisionModel, layers: Sequence[nn.Module] | None = None) -> list[nn.Parameter]:
    """Scale and shift of every normalisation layer, or of some."""
    layers = [layer for _, layer in model.norm_layers()] if layers is None else layers
    return [p for layer in layers for p in (layer.weight, layer.bias) if isinstance(p, nn.Parameter)]


def lacks_affine(model: VisionModel) -> str | None:
    """Why a model has no affine normalisation layers to train; None where it has some."""
    return None if affine_parameters(model) else "it has no normalisation layer with scale and shift"


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the channels of a batch."""
    variance, mean = torch.var_mean(images.float(), [0, *range(2, images.ndim)], correction=0)
    return mean, variance


def _normalised(layer: nn.modules.batchnorm._BatchNorm, images: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Images by the mean and variance of their channels, with the scale and shift of a layer."""
    scale = (variance + layer.eps).rsqrt() * (1.0 if layer.weight is None else layer.weight)
    shift = (0.0 if layer.bias is None else layer.bias) - mean * scale
    channels = (-1, *[1] * (images.ndim - 2))
    return images * scale.view(channels) + shift.view(channels)


class MixedBatchNorm(nn.BatchNorm2d):
    """BatchNorm by a mixture of the batch at hand and the source (Schneider et al., 2020).

    The source counts as `momentum` images for each image of the batch, and for two more: its weights were trained with
    these statistics, so full normalisation by a batch overshoots. Gradients pass through the statistics of the batch.
    """

    of_batch = True
    momentum: float
    running_mean: Tensor
    running_var: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) to the same."""
        mean, variance = _moments(images)
        count = images.shape[0]  # unlike len, torch.export can leave it open
        share = count / (count + self.momentum * (count + 2))
        gap = (mean - self.running_mean).square()
        variance = self.running_var.lerp(variance, share) + share * (1 - share) * gap
        return _normalised(self, images, self.running_mean.lerp(mean, share), variance)


class SlowBatchNorm(nn.BatchNorm2d):
    """BatchNorm by its stored statistics, which in training mode first go a share of the way to those of the batch."""

    momentum: float
    running_mean: Tensor
    running_var: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) to the same."""
        mean, variance = self.running_mean, self.running_var
        if self.training:
            of_batch, spread = _moments(images)
            mean, variance = mean.lerp(of_batch, self.momentum), variance.lerp(spread, self.momentum)
            self.running_mean.copy_(mean.detach())
            self.running_var.copy_(variance.detach())
        return _normalised(self, images, mean, variance)


def replace_batch_norms(model: VisionModel, kind: type[nn.BatchNorm2d], momentum: float = 0.1) -> None:
    """Put a layer of this kind with the same values in the place of each BatchNorm layer with scale and shift.

    Layers that do more than to normalise, such as timm's with an activation, stay as they are.
    """
    release_norms(model)
    for name, layer in model.norm_layers():
        plain = type(layer).forward is nn.BatchNorm2d.forward or isinstance(layer, (SlowBatchNorm, MixedBatchNorm))
        if plain and isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.track_running_stats:
            fresh = kind(layer.num_features, layer.eps, momentum, device=model.device)
            fresh.load_state_dict(layer.state_dict())
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, fresh.eval().requires_grad_(False))


def follow_statistics(model: VisionModel) -> AbstractContextManager[None]:
    """Let the statistics of SlowBatchNorm layers move in the passes within."""
    layers = [layer for layer in batch_norms(model) if isinstance(layer, SlowBatchNorm)]
    return holding(layers, "training", True, usual=False)
