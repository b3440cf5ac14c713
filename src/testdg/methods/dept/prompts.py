"""DePT's prompts: learnt tokens that are added again at every stage of a transformer."""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.methods.parts.added_layers import AddedLayer, add_layers, added_layers
from testdg.methods.parts.blocks import segformer_stages, transformer_blocks
from testdg.models import VisionModel
from testdg.models.blocks import BlockOutput, first, holding, is_attention, width_of, with_first


class StagePrompts(AddedLayer):
    """The prompts of one stage of a ViT: tokens before all others, from its first block to its last.

    Inside `watched` it reports their values after the stage, (N, prompts, D).
    """

    begins = False

    def __init__(self, count: int, width: int, generator: Generator, device: torch.device) -> None:
        super().__init__()
        bound = math.sqrt(6 / ((count + 1) * width))
        draw = torch.rand(count, width, generator=generator, device=device)
        self.tokens = nn.Parameter((2 * draw - 1) * bound)

    def enter(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.begins:
            self.tokens.data += inputs[0].detach().float().mean((0, 1))
        own = self.tokens.expand(len(inputs[0]), -1, -1)
        return (torch.cat([own.to(inputs[0].dtype), inputs[0]], 1), *inputs[1:])

    def leave(self, _: nn.Module, __: object, output: BlockOutput) -> BlockOutput:
        tokens, count = first(output), len(self.tokens)
        self.report(tokens[:, :count])
        return with_first(output, tokens[:, count:])


class KeyPrompts(StagePrompts):
    """The prompts of one stage of a SegFormer: further keys and values in the attention of its blocks.

    Its blocks work on a grid, so there is no place for tokens before all others. What became of them is what they
    get as queries of an attention; the last attention of the stage counts.
    """

    heads: int
    projected: list[tuple[Tensor, Tensor]]

    def attach(self, block: nn.Module) -> None:
        """Look at the query, key and value of a block, and replace what enters its output projection."""
        attention: Any = next(module for module in block.modules() if hasattr(module, "num_attention_heads"))
        self.heads, self.projected = attention.num_attention_heads, []
        outer = next(module for module in block.modules() if is_attention(module))
        *projections, output = (layer for layer in outer.modules() if isinstance(layer, nn.Linear))
        for layer in projections:
            layer.register_forward_hook(self.project)
        output.register_forward_pre_hook(self.attend)

    def project(self, layer: nn.Module, _: object, output: Tensor) -> None:
        """After query, key and value, in this order: the prompts go the same way."""
        own = F.linear(self.tokens, layer.get_parameter("weight"), layer.get_parameter("bias"))
        self.projected.append((output, own.to(output.dtype).expand(len(output), -1, -1)))

    def attend(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Before the output projection."""
        q, k, v = (self._split(torch.cat(pair, 1)) for pair in self.projected[-3:])
        self.projected = []
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        count = len(self.tokens)
        if self.seen is not None:
            own = F.linear(attended[:, -count:], layer.get_parameter("weight"), layer.get_parameter("bias"))
            self.seen[:] = [own]
        return (attended[:, :-count], *inputs[1:])

    def _split(self, tokens: Tensor) -> Tensor:
        n, t, d = tokens.shape
        return tokens.view(n, t, self.heads, d // self.heads).transpose(1, 2)  # (N, heads, T, D / heads)


def add_prompts(model: VisionModel, stages: int, count: int, generator: Generator) -> None:
    """Give prompts to so many equal stages of a ViT's blocks, or to the stages of a SegFormer."""
    added: list[StagePrompts] = []
    if model.task == "segmentation":
        for members in segformer_stages(model):
            keys = KeyPrompts(count, width_of(members[0]), generator, model.device)
            for block in members:
                keys.attach(block)
            added.append(keys)
    else:
        blocks = transformer_blocks(model)
        stages = min(stages, len(blocks))
        cuts = [len(blocks) * k // stages for k in range(stages + 1)]
        for start, end in pairwise(cuts):
            prompts = StagePrompts(count, width_of(blocks[start]), generator, model.device)
            blocks[start].register_forward_pre_hook(prompts.enter)
            blocks[end - 1].register_forward_hook(prompts.leave)
            added.append(prompts)
    add_layers(model, added)


@torch.no_grad()
def begin_as_tokens(model: VisionModel, images: Tensor) -> None:
    """Add to the prompts of a ViT's stages the mean of the tokens that enter, so that a frozen network knows them."""
    with holding(added_layers(model), "begins", True, usual=False):
        model(images)
