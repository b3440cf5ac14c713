from pathlib import Path

import pytest
import torch

from testdg.models import Preprocessing, TinyViT, VisionModel


@pytest.fixture
def model() -> VisionModel:
    """A small model with random weights."""
    torch.manual_seed(0)
    network = TinyViT(patch=8, width=16, depth=2, heads=2)
    return VisionModel(network, "head", Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3), "random-vit").eval()


@pytest.fixture
def model_folder(model: VisionModel, tmp_path: Path) -> Path:
    model.save(tmp_path / "random-vit")
    return tmp_path / "random-vit"
