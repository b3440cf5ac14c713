"""Low-rank branches parallel to the layers of a model: W x + up(down(x))."""

import math
from collections import defaultdict
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call

from testdg.errors import UserError
from testdg.models import Output, VisionModel


class Bottleneck(nn.Module):
    """A low-rank linear branch parallel to each attention linear (or, in a CNN, a 1x1 branch to each convolution).

    Layers that read the same input share one down-projection. `up` starts at zero, so the branch starts as nothing.
    The model itself is never changed: a pass runs with the merged weights W + up down, which costs one small matrix
    product per layer instead of two products per token. Layers of one shape are stored in one tensor, so that a
    transformer needs one batched product for all its blocks.
    """

    def __init__(self, model: VisionModel, rank: int, generator: Generator) -> None:
        super().__init__()
        groups = model.attention_linears() or model.convolutions()
        if not groups:
            problem = f"{model.name} has no attention and no convolution to add a branch to"
            raise UserError(problem, code="unsuitable-model")
        self.layers: dict[str, list[str]] = defaultdict(list)  # shape of a weight: names of its layers
        self.shared: dict[str, list[int]] = defaultdict(list)  # for each of them, which down-projection it reads
        self.inputs: dict[str, str] = {}
        groups_of: dict[str, int] = defaultdict(int)  # input width: number of down-projections
        for group in groups:
            inputs = str(_weight(model, group[0]).shape[1])
            for name in group:
                shape = "x".join(map(str, _weight(model, name).shape[:2]))
                self.layers[shape].append(name)
                self.shared[shape].append(groups_of[inputs])
                self.inputs[shape] = inputs
            groups_of[inputs] += 1
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        for inputs, count in groups_of.items():
            bound = 1 / math.sqrt(int(inputs))
            draw = torch.rand(count, rank, int(inputs), generator=generator, device=model.device)
            self.down[inputs] = nn.Parameter((2 * draw - 1) * bound)
        for shape, names in self.layers.items():
            outputs = int(shape.split("x")[0])
            self.up[shape] = nn.Parameter(torch.zeros(len(names), outputs, rank, device=model.device))
        for shape, places in self.shared.items():
            self.register_buffer(f"places_{shape}", torch.tensor(places, device=model.device), persistent=False)

    def merged(self, model: VisionModel, scales: Tensor | None = None) -> dict[str, Tensor]:
        """Weights of the model with the branches added, by parameter name; `scales` weigh each of their ranks."""
        weights = {}
        for shape, names in self.layers.items():
            down = self.down[self.inputs[shape]].index_select(0, self.get_buffer(f"places_{shape}"))
            up = self.up[shape] if scales is None else self.up[shape] * scales
            deltas = torch.bmm(up, down).unbind()
            for name, delta in zip(names, deltas, strict=True):
                weight = _weight(model, name)
                weights[f"{name}.weight"] = weight + _shaped(delta, weight)
        return weights

    def run(self, model: VisionModel, images: Tensor, scales: Tensor | None = None) -> Output:
        with torch.autocast(images.device.type, enabled=False):
            weights = self.merged(model, scales)
        return functional_call(model, weights, (images,))  # type: ignore[no-any-return]


def _weight(model: VisionModel, name: str) -> Tensor:
    return attrgetter(f"{name}.weight")(model)  # type: ignore[no-any-return]


def _shaped(delta: Tensor, weight: Tensor) -> Tensor:
    """A matrix as it is; for a convolution, the centre tap of its kernel."""
    if weight.ndim == 2:
        return delta
    height, width = weight.shape[2:]
    left, top = (width - 1) // 2, (height - 1) // 2
    return F.pad(delta[:, :, None, None], (left, width - 1 - left, top, height - 1 - top))
