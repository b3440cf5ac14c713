"""Measures of predictions, against plain Python."""

import math

import pytest
import torch

from testdg.methods.parts.entropy import diversity_loss


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4, 5)])
def test_diversity_is_the_gap_of_the_mean_prediction_to_the_uniform_one(shape: tuple[int, ...]) -> None:
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    rows = logits.movedim(1, -1).flatten(0, -2).tolist()  # images, or all pixels of all images
    mean = [sum(column) / len(rows) for column in zip(*map(softmax, rows), strict=True)]
    expected = sum(p * math.log(p) for p in mean) + math.log(shape[1])
    assert float(diversity_loss(logits)) == pytest.approx(expected, rel=1e-4)


def test_diversity_of_certain_predictions() -> None:
    assert float(diversity_loss(30 * torch.eye(4))) == pytest.approx(0, abs=1e-5)
    assert float(diversity_loss(30 * torch.eye(4)[:1])) == pytest.approx(math.log(4), rel=1e-4)
