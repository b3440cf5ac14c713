"""How many passes a batch costs, as the page of each method says; whole steps of TestDG: `test_testdg_cost`."""

from typing import Any

import pytest

from support.networks import segformer
from support.passes import counted
from testdg import adapt
from testdg.methods import Adapter
from testdg.models import VisionModel
from testdg.testing import stream

Counts = dict[str, int]
COSTS: list[tuple[str, dict[str, Any], Counts]] = [
    ("becotta", {}, {"model": 1}),
    ("cmf", {}, {"model": 2}),
    ("continual_mae", {}, {"model": 12}),
    ("cotta", {"threshold": 1.0}, {"model": 1, "teacher": 32, "anchor": 1}),
    ("cotta", {"threshold": 0.0}, {"model": 1, "teacher": 1, "anchor": 1}),
    ("dept", {"source_images": 0}, {"model": 2, "teacher": 2}),
    *(("deyo", {"destroy": how}, {"model": 2}) for how in ("tiles", "centre", "pixels")),
    ("eata", {"fisher": False}, {"model": 1}),
    ("neo", {}, {"model": 1, "backward": 0}),
    ("pseudo_label", {}, {"model": 1}),
    ("rem", {}, {"model": 3}),
    ("roid", {}, {"model": 2}),
    ("roid", {"consistency": False}, {"model": 1}),
    ("sar", {}, {"model": 2, "backward": 2}),
    ("vdp", {}, {"model": 2}),
    ("versatile", {}, {"model": 1, "teacher": 1, "source": 1}),
    ("vida", {"source_images": 0}, {"model": 1, "teacher": 11}),
]
MAPS: list[tuple[str, dict[str, Any], Counts]] = [
    ("becotta", {}, {"model": 9, "source": 1}),
    ("cotta", {"batch_statistics": False}, {"model": 1, "teacher": 14, "anchor": 1}),
    ("obao", {}, {"model": 1, "teacher": 14, "anchor": 1}),
    ("svdp", {}, {"model": 1, "teacher": 15, "anchor": 1}),
]


def hooks(adapter: Adapter) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in adapter.modules())


def check(model: VisionModel, method: str, options: dict[str, Any], passes: Counts) -> None:
    adapter = adapt(model, method, **options)
    images, before = stream(adapter, 1, 4)[0], hooks(adapter)
    with counted(adapter) as counts:
        adapter(images)
    expected = {owner: 4 * count for owner, count in passes.items()}
    assert counts == {**expected, "backward": passes.get("backward", 1)}
    assert model.task == "segmentation" or hooks(adapter) == before  # transformers adds hooks of its own


@pytest.mark.parametrize(("method", "options", "passes"), COSTS, ids=str)
def test_images(vit: VisionModel, method: str, options: dict[str, Any], passes: Counts) -> None:
    check(vit, method, options, passes)


@pytest.mark.parametrize(("method", "options", "passes"), MAPS, ids=str)
def test_maps(method: str, options: dict[str, Any], passes: Counts) -> None:
    check(segformer(), method, options, passes)


def test_the_buffer_of_obao_is_replayed_from_the_second_batch_on(vit: VisionModel) -> None:
    adapter = adapt(vit, "obao", margin=1.1)
    for images, passes in zip(stream(adapter, 2, 4), (2, 3), strict=True):
        with counted(adapter) as counts:
            adapter(images)
        assert counts == {"model": passes * 4, "teacher": 4, "backward": 1}


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("actmad", {}, [(16, 1), (10, 0), (10 + 20, 1)]),
        ("dpcore", {"new_steps": 5, "threshold": 0.0}, [(16 * 6, 5), (10 * 2, 0), (10 * 2 + 20 * 7, 5)]),
        ("foa", {}, [(16 * 18, 0), (10, 0), (10 + 20 * 18, 0)]),  # 4 + 3 ln 96 candidates, and the last winner
    ],
)
def test_small_batches_are_predicted_at_once_and_learnt_from_together(
    vit: VisionModel, method: str, options: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    """Forward passes of images, and backward passes, of a batch of 16 and two of 10."""
    adapter = adapt(vit, method, **options)
    adapter.warm_up(stream(adapter, 2, 16, seed=1))
    for size, passes in zip((16, 10, 10), expected, strict=True):
        with counted(adapter) as counts:
            adapter(stream(adapter, 1, size)[0])
        assert (counts["model"], counts["backward"]) == passes
    assert adapter.waiting.content() == []  # type: ignore[attr-defined]
