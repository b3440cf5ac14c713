"""Small models that the tests of the methods share."""

import pytest
import torch
import transformers

from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, load_model


@pytest.fixture
def vit() -> VisionModel:
    torch.manual_seed(0)
    network = TinyViT(width=32, depth=2, patch=8)
    return load_model(network, preprocessing=Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3))


@pytest.fixture
def cnn() -> VisionModel:
    torch.manual_seed(0)
    return load_model(TinyCNN(width=8), preprocessing=Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3))


@pytest.fixture(scope="session")
def vit_base() -> VisionModel:
    """ViT-B/16 of transformers, random weights; query, key and value are layers of their own."""
    with torch.device("meta"):
        network = transformers.ViTForImageClassification(transformers.ViTConfig())
    network = network.to_empty(device="cpu")
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    return load_model(network, preprocessing=Preprocessing((224, 224)))
