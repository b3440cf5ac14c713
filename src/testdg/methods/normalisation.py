"""What methods do with normalisation layers."""

from __future__ import annotations

from torch import nn

from testdg.models import VisionModel


def batch_norms(model: VisionModel) -> list[nn.Module]:
    """List the BatchNorm layers of a model."""
    return [layer for _, layer in model.norm_layers() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def use_batch_statistics(model: VisionModel) -> None:
    """Make BatchNorm layers normalise by the batch at hand; the stored statistics stay as they are, unused."""
    for layer in batch_norms(model):
        layer.train()
        layer.track_running_stats = False  # type: ignore[assignment]


def affine_parameters(model: VisionModel) -> list[nn.Parameter]:
    """List scale and shift of every normalisation layer."""
    layers = [layer for _, layer in model.norm_layers()]
    return [p for layer in layers for p in (layer.weight, layer.bias) if isinstance(p, nn.Parameter)]
