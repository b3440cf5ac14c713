"""Pictures and a model for streams."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from testdg.models import Preprocessing, TinyCNN, VisionModel


@pytest.fixture(scope="session")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty pictures of several sizes and kinds, in folders; do not write here."""
    folder = tmp_path_factory.mktemp("frames")
    generator = np.random.default_rng(0)
    for number in range(60):
        height, width = (int(side) for side in generator.integers(20, 60, 2))
        coarse = Image.fromarray(generator.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((width, height))
        place = folder / ("day" if number < 30 else "night")
        place.mkdir(exist_ok=True)
        coarse.save(place / f"f{number}.{('png', 'jpg', 'webp')[number % 3]}")
    return folder


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small network with BatchNorm, whose predictions are of several classes."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "tiny-cnn"
    model = VisionModel(TinyCNN(width=4), "head", Preprocessing((24, 24)), "tiny-cnn")
    images = torch.stack([model.prepare(smooth(number)[None])[0] for number in range(100)])
    with torch.no_grad():
        for _ in range(50):  # BatchNorm layers learn what pictures are like
            model.train()(images)
        logits = model.eval()(images).logits
        head = model.network.get_submodule("head")
        head.get_parameter("weight").mul_(3 / logits.std(0).mean())
        head.get_parameter("bias").sub_(model(images).logits.mean(0))
    model.save(folder)
    return folder


def smooth(number: int) -> torch.Tensor:
    """A picture without noise."""
    coarse = np.random.default_rng(1000 + number).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return torch.from_numpy(np.array(Image.fromarray(coarse).resize((40, 40)))).permute(2, 0, 1) / 255
