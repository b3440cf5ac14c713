"""The head is what gives the logits, whatever kind of layer that is and wherever pooling comes."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.errors import refused
from testdg import Preprocessing, adapt, load_model
from testdg.models import VisionModel


def body() -> list[nn.Module]:
    return [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()]


def pooled_before() -> nn.Module:
    return nn.Sequential(*body(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 5, 1), nn.Flatten())


def pooled_after() -> nn.Module:
    return nn.Sequential(*body(), nn.Conv2d(8, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def activated_after() -> nn.Module:
    """As in SqueezeNet: the output of the head is rectified before it is averaged."""
    return nn.Sequential(*body(), nn.Conv2d(8, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def mlp() -> nn.Module:
    head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 5))
    return nn.Sequential(*body(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


class Tokens(nn.Module):
    """A classifier of every place, averaged; its linear layer gets its input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*body()), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(input=self.body(images).flatten(2).mT).mean(1)  # type: ignore[no-any-return]


class Cosine(nn.Module):
    """A classifier without a layer: the directions of its classes are a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.directions = nn.Sequential(*body()), nn.Parameter(torch.randn(5, 8))

    def forward(self, images: Tensor) -> Tensor:
        features = nn.functional.normalize(self.body(images).mean((2, 3)))
        return 10 * features @ nn.functional.normalize(self.directions).T


def loaded(make: Any, **options: Any) -> VisionModel:
    torch.manual_seed(0)
    return load_model(make(), preprocessing=Preprocessing((16, 16)), **options)


IMAGES = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "head", "width", "exact"),
    [
        (pooled_before, "4", 8, True),
        (pooled_after, "3", 8, True),
        (activated_after, "3", 8, False),
        (mlp, "5.3", 6, True),
        (Tokens, "head", 8, True),
    ],
)
def test_any_linear_layer_can_be_the_head(make: Any, head: str, width: int, exact: bool) -> None:
    model = loaded(make)
    assert (model.head, model.feature_size, model.classes, model.exact) == (head, width, 5, exact)
    logits, features = model(IMAGES)
    assert features.shape == (6, width)
    expected = nn.functional.linear(features, model.head_weight, model.head_layer.bias)  # type: ignore[arg-type]
    assert torch.allclose(expected, logits, atol=1e-5) == exact


@pytest.mark.parametrize("make", [pooled_before, pooled_after, activated_after, mlp, Tokens])
@pytest.mark.parametrize("method", ["testdg", "testdg_aligned", "obao", "t3a", "tent"])
def test_methods_adapt_networks_with_such_heads(make: Any, method: str) -> None:
    model = loaded(make)
    if method == "t3a" and not model.exact:
        with refused("unsuitable-model", "t3a", "Sequential", "3"):
            adapt(model, method)
        return
    adapter = adapt(model, method)
    if adapter.awaits_source:
        adapter.warm_up([IMAGES] * 50)
    assert adapter(IMAGES).shape == adapter(IMAGES.flip(-1)).shape == (6, 5)
    if method == "t3a":
        expected = adapter.predict(IMAGES)
        torch.testing.assert_close(adapter.adapted_model()(IMAGES).logits, expected, atol=1e-5, rtol=1e-5)


def test_methods_without_features_need_no_head() -> None:
    model = loaded(Cosine)
    assert (model.head, model.classes, model.feature_size) == (None, 5, 0)
    for method, settings in {
        "source": {}, "tent": {}, "cotta": {}, "align": {}, "testdg": {"as_released": True},
        "testdg_aligned": {"invariance_weight": 0.0},
    }.items():  # fmt: skip
        adapter = adapt(model, method, **settings)
        if adapter.awaits_source:
            adapter.warm_up([IMAGES] * 50)
        assert adapter(IMAGES).shape == (6, 5)
    for method in ("testdg", "testdg_aligned", "t3a", "obao"):
        with refused("no-head", method, "Cosine"):
            adapt(model, method)


def test_adapt_takes_what_describes_a_model() -> None:
    preprocessing, names = Preprocessing((16, 16), mean=(0.5,) * 3), ["ant", "bee", "cat", "dog", "eel"]
    adapter = adapt(mlp(), "tent", head="5.0", preprocessing=preprocessing, classes=names)
    model = adapter.model
    assert (model.head, model.preprocessing, model.class_names) == ("5.0", preprocessing, tuple(names))
    plain = loaded(mlp)
    assert plain.class_names == ("0", "1", "2", "3", "4")
    with refused("class-names", "Sequential", "5", "2"):
        adapt(plain, "tent", classes=["ant", "bee"])
    with refused("option-conflict", "head="):
        adapt(plain, "tent", head="5.0")
    with refused("option-conflict", "preprocessing="):
        adapt(plain, "tent", preprocessing=preprocessing)
    assert adapt(plain, "tent", classes=names).model.class_names == tuple(names)
    assert plain.class_names[0] == "0"


def test_a_guessed_head_is_a_warning() -> None:
    two = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))  # takes 2 x 2 pixels alone
    with pytest.warns(UserWarning, match="'3'.*Sequential"):
        assert load_model(two).head == "3"
    assert load_model(two, preprocessing=Preprocessing((2, 2))).head == "3"


def test_a_head_that_is_not_a_linear_layer_is_refused() -> None:
    for head, found in {"clasifier": "5.3", "1": "BatchNorm2d"}.items():
        with refused("no-head", head, "Sequential", found):
            loaded(mlp, head=head)


class WithAnother(nn.Module):
    """A classifier with a linear layer after its head that is for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classifier, self.auxiliary = nn.Linear(3, 8), nn.Linear(8, 5), nn.Linear(8, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.body(images.mean((2, 3))).relu())  # type: ignore[no-any-return]


def test_the_head_is_what_gives_the_logits() -> None:
    model = loaded(WithAnother)
    assert (model.head, model.classes, model.feature_size) == ("classifier", 5, 8)
    with refused("no-head", "auxiliary", "WithAnother"):
        loaded(WithAnother, head="auxiliary")(IMAGES)


def test_maps_are_no_logits_of_a_classifier() -> None:
    dense = nn.Sequential(*body(), nn.Conv2d(8, 5, 1))
    with refused("bad-network", (1, 5, 8, 8)):
        loaded(lambda: dense)


def test_several_threads_can_use_a_model() -> None:
    model = load_model(pooled_after())
    batches = [torch.rand(1 + number % 3, 3, 8, 8) for number in range(6)]
    with torch.no_grad():
        expected = [model(batch).features for batch in batches]

    def ask(number: int) -> bool:
        with torch.no_grad():
            return all(torch.equal(model(batches[number]).features, expected[number]) for _ in range(60))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(batches)) as pool:
            assert all(pool.map(ask, range(len(batches))))
    finally:
        sys.setswitchinterval(before)
