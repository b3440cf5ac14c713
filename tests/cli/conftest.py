"""A small model that the tests of the commands share."""

from pathlib import Path

import pytest
import torch

from testdg.models import Preprocessing, TinyViT, VisionModel


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model with random weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "random-vit"
    network = TinyViT(patch=8, width=16, depth=1, heads=2)
    VisionModel(network, "head", Preprocessing((32, 32)), "random-vit").save(folder)
    return folder
