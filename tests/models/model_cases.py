"""Small random networks of every kind that is loaded."""

from collections.abc import Callable
from typing import Any

import transformers

from testdg.models import Preprocessing

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}


def vit() -> Any:
    config = transformers.ViTConfig(**SMALL, intermediate_size=32, num_labels=5)
    return transformers.ViTForImageClassification(config)


def dinov2() -> Any:
    return transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**SMALL, mlp_ratio=2, num_labels=5))


def segformer_config() -> Any:
    return transformers.SegformerConfig(
        hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], sr_ratios=[4, 2, 2, 1],
        decoder_hidden_size=16, num_labels=5,
    )  # fmt: skip


def segformer() -> Any:
    return transformers.SegformerForSemanticSegmentation(segformer_config())


def segformer_classifier() -> Any:
    return transformers.SegformerForImageClassification(segformer_config())


KINDS: dict[str, Callable[[], Any]] = {
    "vit": vit, "dinov2": dinov2, "segformer": segformer, "segformer-classifier": segformer_classifier,
}  # fmt: skip
PREPROCESSING = Preprocessing((32, 32), resample="bicubic", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
