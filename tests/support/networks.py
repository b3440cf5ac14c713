"""Small networks in known states, and large ones without values."""

import dataclasses

import torch
import transformers
from torch import nn

from testdg.models import Preprocessing, VisionModel, load_model

HALF = (0.5,) * 3


def segformer(size: int = 32) -> VisionModel:
    """A SegFormer of a few thousand weights, for square images and five classes."""
    torch.manual_seed(0)
    config = transformers.SegformerConfig(
        num_labels=5,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
        sr_ratios=[1, 1, 1, 1],
    )
    network = transformers.SegformerForSemanticSegmentation(config)
    return load_model(network, preprocessing=Preprocessing((size, size), mean=HALF, std=HALF))


def confident(model: VisionModel, scale: float = 100.0) -> VisionModel:
    """The same model with a classifier whose predictions are surer."""
    with torch.no_grad():
        model.network.get_submodule(model.head).get_parameter("weight").mul_(scale)
    return model


def segformer_b5() -> VisionModel:
    """SegFormer-B5 for Cityscapes without values, for counting."""
    config = transformers.SegformerConfig(
        num_labels=19,
        depths=[3, 6, 40, 3],
        hidden_sizes=[64, 128, 320, 512],
        num_attention_heads=[1, 2, 5, 8],
        decoder_hidden_size=768,
    )
    with torch.device("meta"):
        return load_model(transformers.SegformerForSemanticSegmentation(config))


def any_size() -> VisionModel:
    """A SegFormer that takes images as they come."""
    model = segformer()
    model.preprocessing = dataclasses.replace(model.preprocessing, size=None)
    return model


def flat() -> VisionModel:
    """Pixels and a classifier: no normalisation, no attention, no convolution."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    return load_model(network, preprocessing=Preprocessing((4, 4)), name="flat")


def hugging_face(kind: str, width: int = 32, depth: int = 2, patch: int = 8) -> VisionModel:
    torch.manual_seed(0)
    shape = {
        "hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": 2,
        "image_size": 32, "patch_size": patch, "num_labels": 10,
    }  # fmt: skip
    if kind == "hf-vit":
        config = transformers.ViTConfig(**shape, intermediate_size=4 * width)
        network: nn.Module = transformers.ViTForImageClassification(config)
    else:
        network = transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**shape))
    return load_model(network, preprocessing=Preprocessing((32, 32), mean=HALF, std=HALF))
