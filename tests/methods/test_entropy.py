"""Measures of predictions."""

import pytest
import torch

from testdg.methods.parts.entropy import effective_classes


@pytest.mark.parametrize(
    ("mix", "classes"),
    [([1.0, 0.0, 0.0, 0.0], 1.0), ([0.5, 0.5, 0.0, 0.0], 2.0), ([0.25] * 4, 4.0), ([0.5, 0.25, 0.25, 0.0], 2**1.5)],
)
def test_a_mix_amounts_to_so_many_classes(mix: list[float], classes: float) -> None:
    assert float(effective_classes(torch.tensor(mix))) == pytest.approx(classes, rel=1e-4)
