"""Base of the methods that add tokens between the class token and the patches of a vision transformer."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn

from testdg.methods import Adapter
from testdg.methods.parts.blocks import class_tokens, entering, transformer_blocks
from testdg.methods.parts.waiting import Waiting
from testdg.models import VisionModel
from testdg.models.blocks import width_of


def draw_prompts(model: VisionModel, count: int, generator: Generator) -> Tensor:
    """Prompts (count, D) as small as the patch embedding of a ViT at its start."""
    width = width_of(transformer_blocks(model)[0])
    patch = next((layer.weight[0].numel() for layer in model.modules() if isinstance(layer, nn.Conv2d)), width)
    bound = math.sqrt(6 / (patch + width))
    return (2 * torch.rand(count, width, generator=generator, device=model.device) - 1) * bound


@contextmanager
def prompted(model: VisionModel, prompts: Tensor, others: int) -> Iterator[None]:
    """Put prompts (P, D) after the `others` tokens that stand before the patches, in the passes within."""

    def insert(tokens: Tensor) -> Tensor:
        own = prompts.to(tokens.dtype).expand(len(tokens), -1, -1)
        return torch.cat([tokens[:, :others], own, tokens[:, others:]], 1)

    with entering(model, insert):
        yield


def moments(features: Tensor) -> Tensor:
    """Mean and unbiased deviation over images, (2, D); zero for one image, which has no deviation."""
    deviation = features.std(0) if len(features) > 1 else torch.zeros_like(features[0])
    return torch.stack([features.mean(0), deviation])


class PromptedAdapter(Adapter):
    """A method with prompts. It defines `learn`, which predicts images and learns from them, once there are enough."""

    needs = "a class token"
    least_source_images = 2
    waiting: Waiting

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        return None if class_tokens(model) else "it has no class token, next to which prompts are added"

    def step(self, images: Tensor) -> Tensor:
        """Predict by the prompts that are learnt on the batch; a small batch, by those that are known."""
        return self.waiting.gather_for(self.learn, self.infer, images)

    def learn(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def why_not_exportable(self) -> str | None:
        return "it adds tokens to those of the image"
