"""What methods do with normalisation layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from testdg.models import VisionModel


def batch_norms(model: VisionModel) -> list[nn.Module]:
    """List the BatchNorm layers of a model."""
    return [layer for _, layer in model.norm_layers() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def use_batch_statistics(model: VisionModel) -> None:
    """Make BatchNorm layers normalise by the batch at hand; the stored statistics stay as they are, unused."""
    for layer in batch_norms(model):
        layer.train()
        layer.track_running_stats = False  # type: ignore[assignment]


def affine_parameters(model: VisionModel, layers: Sequence[nn.Module] | None = None) -> list[nn.Parameter]:
    """List scale and shift of every normalisation layer, or of some."""
    layers = [layer for _, layer in model.norm_layers()] if layers is None else layers
    return [p for layer in layers for p in (layer.weight, layer.bias) if isinstance(p, nn.Parameter)]


class SlowBatchNorm(nn.BatchNorm2d):
    """BatchNorm by its stored statistics, which in training mode first go a share of the way to those of the batch."""

    momentum: float
    running_mean: Tensor
    running_var: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) to the same."""
        mean, variance = self.running_mean, self.running_var
        if self.training:
            of_batch = torch.var_mean(images.float(), (0, 2, 3), correction=0)
            variance, mean = variance.lerp(of_batch[0], self.momentum), mean.lerp(of_batch[1], self.momentum)
            self.running_mean, self.running_var = mean.detach(), variance.detach()
        scale = self.weight * (variance + self.eps).rsqrt()
        return images * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


def use_slow_statistics(model: VisionModel, share: float) -> None:
    """Put a SlowBatchNorm with the same values in the place of each BatchNorm layer with scale and shift."""
    for name, layer in model.norm_layers():
        if isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.track_running_stats:
            slow = SlowBatchNorm(layer.num_features, layer.eps, share, device=model.device)
            slow.load_state_dict(layer.state_dict())
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, slow.eval().requires_grad_(False))


@contextmanager
def follow_statistics(model: VisionModel) -> Iterator[None]:
    """Let the statistics of SlowBatchNorm layers move in the passes within."""
    layers = [layer for layer in batch_norms(model) if isinstance(layer, SlowBatchNorm)]
    for layer in layers:
        layer.train()
    try:
        yield
    finally:
        for layer in layers:
            layer.eval()
