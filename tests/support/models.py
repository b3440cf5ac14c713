"""Small random networks of every kind that is loaded or adapted."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, load_model

SIZED = Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
BICUBIC = Preprocessing((32, 32), resample="bicubic", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}


def tiny_vit(preprocessing: Preprocessing = SIZED, **options: Any) -> VisionModel:
    torch.manual_seed(0)
    return load_model(TinyViT(**{"width": 32, "depth": 2, "patch": 8, **options}), preprocessing=preprocessing)


def tiny_cnn(preprocessing: Preprocessing = SIZED, width: int = 8) -> VisionModel:
    torch.manual_seed(0)
    return load_model(TinyCNN(width=width), preprocessing=preprocessing)


class WithActivation(nn.BatchNorm2d):
    """BatchNorm that ends in an activation, as timm has it."""

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        return super().forward(images).relu()


def _segformer_config() -> Any:
    return transformers.SegformerConfig(
        hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], sr_ratios=[4, 2, 2, 1],
        decoder_hidden_size=16, num_labels=5,
    )  # fmt: skip


KINDS: dict[str, Callable[[], Any]] = {
    "vit": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**SMALL, intermediate_size=32, num_labels=5)
    ),
    "dinov2": lambda: transformers.Dinov2ForImageClassification(
        transformers.Dinov2Config(**SMALL, mlp_ratio=2, num_labels=5)
    ),
    "segformer": lambda: transformers.SegformerForSemanticSegmentation(_segformer_config()),
    "segformer-classifier": lambda: transformers.SegformerForImageClassification(_segformer_config()),
}
"""Networks of transformers with five classes."""
