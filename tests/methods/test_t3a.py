"""T3A: templates against literal loops, what is kept, and what never changes."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from testdg.methods.t3a import T3A
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.testing import CHECKS, check_adapter, stream


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


def test_without_a_filter_it_is_a_nearest_template_classifier(vit: VisionModel) -> None:
    adapter = T3A(vit, supports=None)
    batches = stream(adapter)
    with torch.no_grad():
        outputs = [vit(images) for images in batches]
    head = vit.network.get_submodule(vit.head)
    rows = head.get_parameter("weight").detach()
    supports = torch.cat([rows, *(output.features for output in outputs)])
    labels = torch.cat([head(rows), *(output.logits for output in outputs)]).argmax(1)
    for images in batches:
        scores = adapter(images)
    units = supports / supports.norm(dim=1, keepdim=True)
    sums = torch.stack([units[labels == c].sum(0) if (labels == c).any() else rows[c] for c in range(10)])
    cosines = nn.functional.cosine_similarity(outputs[-1].features[:, None], sums[None], dim=2)
    assert torch.equal(scores.argmax(1), cosines.argmax(1))


def test_before_the_first_batch_templates_are_unit_rows_of_the_head() -> None:
    model = flat_model()
    head = model.network.get_submodule(model.head)
    with torch.no_grad():
        head.get_parameter("weight").copy_(torch.eye(4, 12) * torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
        head.get_parameter("bias").zero_()
    images = torch.rand(5, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(T3A(model).predict(images), images.flatten(1)[:, :4])


def test_features_that_are_less_sure_than_the_kept_ones_change_nothing() -> None:
    model = flat_model()
    adapter = T3A(model, supports=1)
    rows = model.network.get_submodule(model.head).get_parameter("weight")
    before = adapter.templates()
    held = adapter.entropies[:, 0]
    images = torch.rand(32, 3, 2, 2, generator=torch.Generator().manual_seed(2)) * 0.01
    with torch.no_grad():
        logits = model(images).logits
    log_p = logits.log_softmax(1)
    assert bool((-(log_p.exp() * log_p).sum(1) > held[logits.argmax(1)]).all()), "the case is not the one meant"
    adapter(images)
    assert torch.equal(adapter.templates(), before)
    assert rows.shape == (4, 12)


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


def test_a_class_without_supports_has_its_own_row() -> None:
    model = flat_model()
    head = model.network.get_submodule(model.head)
    with torch.no_grad():
        head.get_parameter("weight")[3] = head.get_parameter("weight")[2] * 0.5  # its row is taken for class 2
        head.get_parameter("bias").zero_()
    row = head.get_parameter("weight")[3].detach()
    torch.testing.assert_close(T3A(model).templates()[3], row / row.norm())


def test_the_network_never_changes_and_the_export_predicts_the_same(vit: VisionModel) -> None:
    adapter = T3A(vit)
    assert not adapter.trainable()
    batches = stream(adapter)
    for images in batches:
        adapter(images)
    assert all(torch.equal(a, b) for a, b in zip(adapter.model.parameters(), vit.parameters(), strict=True))
    exported = adapter.adapted_model()
    with torch.no_grad():
        torch.testing.assert_close(exported(batches[0]).logits, adapter.predict(batches[0]), rtol=1e-4, atol=1e-6)


def test_all_supports_keep_every_law() -> None:
    model = load_model(TinyViT(width=16, depth=1, patch=8), preprocessing=Preprocessing((32, 32)))
    make: Any = lambda **more: T3A(model, supports=None, **more)  # noqa: E731
    assert set(CHECKS) - set(check_adapter(make)) == set(T3A.exceptions(model))
