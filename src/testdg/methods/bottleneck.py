"""Low-rank branches beside the layers of a model: W x + up(down(x))."""

from __future__ import annotations

import math
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call

from testdg.errors import UserError
from testdg.models import Output, VisionModel


class Bottleneck(nn.Module):
    """A linear branch of small rank beside each attention linear (or, in a CNN, a 1x1 branch beside each convolution).

    Layers that read the same input share one down-projection. `up` starts at zero, so the branch starts as nothing.
    The model itself is never changed: a pass runs with the merged weights W + up down, which costs one small matrix
    product per layer instead of two products per token.
    """

    def __init__(self, model: VisionModel, rank: int, generator: Generator) -> None:
        super().__init__()
        self.groups = model.attention_linears() or model.convolutions()
        if not self.groups:
            raise UserError(f"{model.name} has no attention and no convolution to put a branch beside")
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        for group in self.groups:
            inputs = model.get_submodule(group[0]).get_parameter("weight").shape[1]
            bound = 1 / math.sqrt(inputs)
            down = torch.rand(rank, inputs, generator=generator, device=model.device) * 2 * bound - bound
            self.down[_key(group[0])] = nn.Parameter(down)
            for name in group:
                outputs = model.get_submodule(name).get_parameter("weight").shape[0]
                self.up[_key(name)] = nn.Parameter(torch.zeros(outputs, rank, device=model.device))

    def merged(self, model: VisionModel) -> dict[str, Tensor]:
        """Weights of the model with the branches added, by parameter name."""
        weights = {}
        for group in self.groups:
            down = self.down[_key(group[0])]
            for name in group:
                weight = attrgetter(f"{name}.weight")(model)
                weights[f"{name}.weight"] = weight + _shaped(self.up[_key(name)] @ down, weight)
        return weights

    def run(self, model: VisionModel, images: Tensor) -> Output:
        """Run a model with the branches beside its layers."""
        with torch.autocast(images.device.type, enabled=False):
            weights = self.merged(model)
        return functional_call(model, weights, (images,))  # type: ignore[no-any-return]


def _shaped(delta: Tensor, weight: Tensor) -> Tensor:
    """A matrix as it is; for a convolution, the centre tap of its kernel."""
    if weight.ndim == 2:
        return delta
    height, width = weight.shape[2:]
    left, top = (width - 1) // 2, (height - 1) // 2
    return F.pad(delta[:, :, None, None], (left, width - 1 - left, top, height - 1 - top))


def _key(name: str) -> str:
    return name.replace(".", "/")
