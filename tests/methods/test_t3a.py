"""T3A: templates against literal loops, what is stored, and what never changes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from testdg.methods.t3a import T3A
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.testing import stream


def flat_model(classes: int = 4, seed: int = 0) -> VisionModel:
    """Pixels are the features, so a test can choose them."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, classes))
    return load_model(network, preprocessing=Preprocessing((2, 2)), name="flat")


class Literal:
    """The algorithm, one support after the other, in double precision."""

    def __init__(self, model: VisionModel, most: int | None) -> None:
        head = model.network.get_submodule(model.head)
        self.weight, self.bias = head.get_parameter("weight").double(), head.get_parameter("bias").double()
        self.most, self.store = most, []
        for row in self.weight:
            self.append(row)

    def append(self, feature: Tensor) -> None:
        p = (self.weight @ feature + self.bias).softmax(0).tolist()
        self.store.append((feature, p.index(max(p)), -sum(x * math.log(x) for x in p)))

    def predict(self, features: Tensor) -> Tensor:
        for feature in features:
            self.append(feature)
        if self.most is not None:
            kept = []
            for c in range(len(self.weight)):
                kept += sorted((s for s in self.store if s[1] == c), key=lambda s: s[2])[: self.most]
            self.store = kept
        templates = []
        for c in range(len(self.weight)):
            mine = [feature / feature.norm() for feature, label, _ in self.store if label == c]
            total = sum(mine) if mine else self.weight[c]
            templates.append(total / total.norm())
        return features @ torch.stack(templates).T


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 5, None]), st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_against_the_literal_algorithm(seed: int, most: int | None, sizes: list[int]) -> None:
    model = flat_model(seed=seed)
    adapter, literal = T3A(model, supports=most), Literal(model, most)
    generator = torch.Generator().manual_seed(seed)
    for size in sizes:
        images = torch.rand(size, 3, 2, 2, generator=generator)
        expected = literal.predict(images.flatten(1).double())
        torch.testing.assert_close(adapter(images).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [1, 3, None])
def test_the_store_is_bounded_and_reset_gives_the_rows_back(vit: VisionModel, most: int | None) -> None:
    adapter = T3A(vit, supports=most)
    assert int(adapter.entropies.isfinite().sum()) == (
        0 if most is None else min(10, int(adapter.features.any(2).sum()))
    )
    first = adapter.templates()
    for images in stream(adapter, 10, 12):
        adapter(images)
    assert adapter.features.shape == (10, most or 1, 32)
    if most:
        assert int(adapter.entropies.isfinite().sum(1).max()) == most
    assert not torch.equal(adapter.templates(), first)
    adapter.reset()
    assert torch.equal(adapter.templates(), first)
