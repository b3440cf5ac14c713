"""Small models that the tests of the methods share."""

import pytest
import torch
import transformers

from support.models import tiny_cnn, tiny_vit
from testdg.models import Preprocessing, VisionModel, load_model


@pytest.fixture
def vit() -> VisionModel:
    return tiny_vit()


@pytest.fixture
def cnn() -> VisionModel:
    return tiny_cnn()


@pytest.fixture(scope="session")
def vit_base() -> VisionModel:
    """ViT-B/16 of transformers, random weights; query, key and value are layers of their own."""
    with torch.device("meta"):
        network = transformers.ViTForImageClassification(transformers.ViTConfig())
    network = network.to_empty(device="cpu")
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    return load_model(network, preprocessing=Preprocessing((224, 224)))
