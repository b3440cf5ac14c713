"""BECoTTA's mixture of low-rank experts behind a transformer block, and the router that chooses among them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.methods.added_layers import AddedLayer, add_layers, added_layers
from testdg.methods.parts.blocks import transformer_blocks
from testdg.models import VisionModel
from testdg.models.blocks import first, width_of, with_first

NOISE_FLOOR = 0.01


class Experts(AddedLayer):
    """h + sum over the chosen experts of gate times up(GELU(down(h))), for tokens h of any leading shape (N, ..., C).

    The router scores every expert for each token; an image takes the `chosen` experts with the best mean score, and
    their softmax is the gates. `as_released` adds scores up instead, always runs the first experts, and gives all
    images the gates of the first one, without a gradient.
    """

    def __init__(
        self, width: int, rank: int, experts: int, chosen: int, generator: Generator, device: torch.device
    ) -> None:
        super().__init__()
        self.chosen, self.as_released = chosen, False
        self.noise: Generator | None = None
        self.router = nn.Parameter(torch.empty(width, 2 * experts, device=device))
        self.down = nn.Parameter(torch.empty(experts, rank, width, device=device))
        self.up = nn.Parameter(torch.zeros(experts, rank, width, device=device))
        self.down_bias = nn.Parameter(torch.zeros(experts, rank, device=device))
        self.up_bias = nn.Parameter(torch.zeros(experts, width, device=device))
        for weight in (self.router, self.down):
            nn.init.trunc_normal_(weight, std=0.02, generator=generator)

    def gates(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Gates of the best experts of each image, (N, K), and their numbers."""
        scores, spread = (tokens @ self.router).float().chunk(2, -1)
        if self.noise is not None:
            draw = torch.randn(scores.shape, generator=self.noise, device=scores.device)
            scores = scores + draw * (F.softplus(spread) + NOISE_FLOOR)
        scores = scores.sum(1) if self.as_released else scores.mean(1)
        best, which = scores.topk(self.chosen, 1)
        gates = best.softmax(1)
        if self.as_released:
            which = torch.arange(self.chosen, device=which.device).expand_as(which)
            gates = gates[:1].detach().expand_as(gates)
        return gates, which

    def forward(self, h: Tensor) -> Tensor:
        """Add what the experts say."""
        tokens = h.flatten(1, -2)  # (N, T, C)
        gates, which = self.gates(tokens)
        down, up = (weight[which].flatten(1, 2) for weight in (self.down, self.up))  # (N, K r, C)
        inner = F.gelu(tokens @ down.mT + self.down_bias[which].flatten(1)[:, None])
        inner = inner * gates.repeat_interleave(self.down.shape[1], 1)[:, None]
        bias = (gates[..., None] * self.up_bias[which]).sum(1, keepdim=True)
        return h + (inner @ up + bias).view_as(h)

    def leave(self, _: nn.Module, __: Any, output: Any) -> Any:
        """After the block."""
        return with_first(output, self(first(output)))


def add_experts(
    model: VisionModel, ranks: Sequence[int], experts: int, chosen: int, generator: Generator, as_released: bool
) -> None:
    """Put experts behind the transformer blocks of a model; a block with rank 0 gets none."""
    added = []
    for block, rank in zip(transformer_blocks(model), ranks, strict=True):
        if rank:
            layer = Experts(width_of(block), rank, experts, chosen, generator, model.device)
            if as_released:
                layer.as_released = True
                nn.init.trunc_normal_(layer.up, std=0.02, generator=generator)
            block.register_forward_hook(layer.leave)
            added.append(layer)
    add_layers(model, added)


@contextmanager
def noisy_routers(model: VisionModel, generator: Generator | None) -> Iterator[None]:
    """Let the routers of a model add noise to their scores in the passes within, unless there is no generator."""
    layers = [layer for layer in added_layers(model) if isinstance(layer, Experts)]
    for layer in layers:
        layer.noise = generator
    try:
        yield
    finally:
        for layer in layers:
            layer.noise = None
