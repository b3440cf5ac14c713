"""The battery for settings of a method under which it takes other paths, and for methods on maps."""

from typing import Any

import pytest
import torch

from support.networks import any_size, confident, segformer
from testdg.methods import find_method
from testdg.models import VisionModel
from testdg.testing import CHECKS, check_adapter

Options = dict[str, Any]
COME: Options = {"loss": "come"}
VARIANTS: list[tuple[str, str, Options]] = [
    ("actmad", "cnn", {"least_images": 2}),
    ("actmad", "cnn", {"trained": "all", "weight_decay": 5e-4}),
    ("eata", "vit", {"fisher": False}),
    ("eata", "vit", {"fisher": False, **COME}),
    ("neo", "cnn", {"anchor": "source"}),
    ("neo", "cnn", {"share": 0.1, "after": 8}),
    ("rotta", "cnn", {"update_every": 8, "capacity": 8}),
    ("rotta", "vit", {"update_every": 8, "capacity": 8}),
    ("sar", "vit", {"recovery": 0.0, **COME}),
    ("t3a", "vit", {"supports": None}),
    ("tent", "vit", COME),
]


@pytest.mark.parametrize(("method", "kind", "options"), VARIANTS, ids=str)
def test_variants_keep_every_law(method: str, kind: str, options: Options, request: pytest.FixtureRequest) -> None:
    model, adapter = request.getfixturevalue(kind), find_method(method)
    ran = check_adapter(lambda **settings: adapter(model, **{**settings, **options}))
    assert set(ran) == set(CHECKS) - set(adapter.exceptions(model))


RESUMING: list[tuple[str, Options]] = [
    *((name, {"sketch": "stream", "source_images": 64}) for name in ("align", "testdg_aligned")),
    ("testdg", {"early": 8}),
    ("vida", {"restore": 1.0, "source_images": 12, "warm_up_learning_rate": 1e-2, "views": 3}),
]


@pytest.mark.parametrize("check", ["reset is exact", "save, load, continue equals never stopped"])
@pytest.mark.parametrize(("method", "options"), RESUMING, ids=str)
def test_variants_reset_and_resume(vit: VisionModel, method: str, options: Options, check: str) -> None:
    adapter = find_method(method)
    assert check_adapter(lambda **settings: adapter(vit, **{**settings, **options}), only=check) == [check]


LAWS_OF_MAPS = [
    "reset is exact",
    "save, load, continue equals never stopped",
    "learning rate 0 is the source",
    "a batch of one and a short last batch",
    "only declared parameters move",
    "bf16 stays finite",
]
"""The laws that maps could break; a SegFormer is too slow for all of them."""
MAPS: list[tuple[str, Options]] = [
    ("becotta", {}),
    ("continual_mae", {"views": 2}),
    ("cotta", {}),
    ("dept", {"source_images": 12, "prompts": 5, "pixels": 8}),
    ("ecotta", {"source_images": 12}),
    ("obao", {"restore": 0.01}),
    ("pseudo_label", {"confidence": 0.5}),
    ("source", {}),
    ("svdp", {}),
    ("tent", {"batch_statistics": False}),
    ("testdg", {}),
    ("vdp", {"loss": "hard"}),
    ("vida", {"high_rank": 4, "views": 2, "loss": "hard", "source_images": 0}),
]
RELEASED = [(name, {"source_images": 12, "as_released": True}, LAWS_OF_MAPS[1]) for name in ("becotta", "ecotta")]


@pytest.mark.parametrize(
    ("method", "options", "check"), [*((*case, check) for case in MAPS for check in LAWS_OF_MAPS), *RELEASED], ids=str
)
def test_maps_keep_the_laws(method: str, options: Options, check: str) -> None:
    model, adapter = segformer(), find_method(method)
    if check in adapter.exceptions(model):
        pytest.skip(adapter.exceptions(model)[check])
    assert check_adapter(lambda **settings: adapter(model, **{**options, **settings}), only=check) == [check]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("becotta", {"size": "S", "learning_rate": 1e-2, "margin": 1.0, "restore": 0.0}),
        ("continual_mae", {"views": 2, "learning_rate": 1e-3}),
        ("dept", {"source_images": 0, "prompts": 5, "learning_rate": 0.1}),
        ("ecotta", {"source_images": 12}),
        ("svdp", {"momentum": 0.5}),
        ("testdg", {"predict": "student", "learning_rate": 1e-2}),
        ("vdp", {"loss": "hard", "learning_rate": 0.1, "momentum": 0.5}),
        (
            "vida",
            {"source_images": 8, "high_rank": 4, "views": 3, "loss": "hard", "learning_rate": 1e-2, "momentum": 0.5},
        ),
    ],
    ids=str,
)
def test_maps_of_any_size_teach(method: str, options: Options) -> None:
    model = any_size()
    adapter = find_method(method)(confident(model, 100.0), **options)
    generator = torch.Generator().manual_seed(0)
    if adapter.awaits_source:
        labels = torch.randint(0, 5, (4, 16, 16), generator=generator, dtype=torch.uint8)
        labels[:, :4] = 255
        adapter.warm_up((torch.rand(4, 3, 32, 32, generator=generator), labels) for _ in range(2))
    images = torch.rand(1, 3, 50, 76, generator=generator)
    before = adapter.predict(images)
    for _ in range(2):
        assert adapter(images).shape == (1, 5, 50, 76)
    assert not torch.equal(adapter.predict(images), before)
    assert adapter.skipped == 0


@pytest.mark.parametrize("method", ["continual_mae", "dept", "testdg", "testdg_aligned", "vdp", "vida"])
def test_augmented_pixels_of_a_map_stay_in_their_places(method: str) -> None:
    options = {"augmentation": 1.0} if method == "testdg_aligned" else {}
    adapter = find_method(method)(segformer(), **options)
    images = torch.zeros(1, 3, 32, 32)
    images[..., 16:] = 1.0
    view = adapter.augment(images, adapter.generator)  # type: ignore[attr-defined]
    assert not torch.equal(view, images)
    assert float(view[..., :13].max()) < float(view[..., 19:].min())


def test_the_published_settings_for_maps_run() -> None:
    for method, preset in (("testdg", "acdc"), ("testdg", "streets"), ("tent", "acdc"), ("tent", "streets")):
        adapter = find_method(method)
        made = adapter(segformer(), **adapter.preset(preset))
        assert made(torch.rand(2, 3, 32, 32)).isfinite().all()
