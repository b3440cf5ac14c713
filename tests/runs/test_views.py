"""Views and windows: the prediction that is scored, and what they leave alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.errors import refused
from testdg.methods import adapt
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.models.segformer import tiny_segformer
from testdg.report.record import record_lines
from testdg.runs import Protocol, Result, comparable, read_protocol, run
from testdg.runs.views import RATIOS_OF, Views, slide

SIZE = (64, 96)


@pytest.fixture
def model() -> VisionModel:
    torch.manual_seed(0)
    return load_model(tiny_segformer(9), preprocessing=Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3), name="random")


def pictures(count: int = 2, size: tuple[int, int] = SIZE) -> Tensor:
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(1))


def probabilities(logits: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(logits, size, mode="bilinear", align_corners=False).softmax(1)


def test_one_view_is_the_plain_prediction_bit_for_bit(model: VisionModel) -> None:
    adapter, images = adapt(model, "tent"), pictures()
    assert Views().plain
    assert torch.equal(Views().predict(adapter, images, (128, 192)), adapter.predict(images))


@pytest.mark.parametrize("count", [2, 8, 14])
def test_views_are_the_mean_over_sizes_and_mirror_images(model: VisionModel, count: int) -> None:
    adapter, images = adapt(model, "source"), pictures(1)
    wanted = []
    for ratio in RATIOS_OF[count]:
        size = (int(64 * ratio), int(96 * ratio))
        view = F.interpolate(images, size, mode="bilinear", align_corners=False)
        wanted.append(probabilities(adapter.predict(view), SIZE))
        wanted.append(probabilities(adapter.predict(view.flip(3)), SIZE).flip(3))
    assert len(wanted) == count
    assert torch.allclose(Views(count).predict(adapter, images, SIZE), torch.stack(wanted).mean(0), atol=1e-6)


def test_views_are_of_the_size_that_the_model_takes(model: VisionModel) -> None:
    """Views of a model that resizes are made from the resized picture."""
    fixed = load_model(model.network, preprocessing=Preprocessing(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3))
    large = pictures(1, (128, 192))
    found = Views(8).predict(adapt(fixed, "source"), large, (128, 192))
    prepared = fixed.prepare(large)
    assert prepared.shape[-2:] == SIZE
    assert torch.allclose(found, Views(8).predict(adapt(model, "source"), prepared, (128, 192)), atol=1e-6)


@pytest.mark.parametrize("window", [SIZE, (64, 200), (500, 500)])
def test_a_window_as_large_as_the_picture_is_the_plain_prediction(model: VisionModel, window: tuple[int, int]) -> None:
    adapter, images = adapt(model, "source"), pictures()
    assert torch.equal(Views(1, window, window).predict(adapter, images, SIZE), adapter.predict(images))


def position(images: Tensor) -> Tensor:
    """A "prediction" that depends on where in its window a pixel is."""
    height, width = images.shape[-2:]
    return images[:, :2] + torch.arange(height)[:, None] * 10 + torch.arange(width)


@settings(max_examples=60, deadline=None)
@given(size=st.tuples(*[st.integers(1, 15)] * 2), window=st.tuples(*[st.integers(1, 9)] * 2), data=st.data())
def test_overlapping_windows_are_averaged(size: tuple[int, int], window: tuple[int, int], data: Any) -> None:
    stride = data.draw(st.tuples(*[st.integers(1, side) for side in window]))
    images = pictures(1, size)
    corners = []
    for length, side, step in zip(size, window, stride, strict=True):
        starts = [0]
        while starts[-1] + side < length:
            starts.append(min(starts[-1] + step, length - side))
        corners.append(starts)
    values: dict[tuple[int, int], list[Any]] = {}
    for top in corners[0]:
        for left in corners[1]:
            part = position(images[..., top : top + window[0], left : left + window[1]])[0].numpy()
            for row, column in np.ndindex(part.shape[1:]):
                values.setdefault((top + row, left + column), []).append(part[:, row, column])
    found = slide(position, images, window, stride)[0].numpy()
    assert len(values) == size[0] * size[1]
    for (row, column), several in values.items():
        np.testing.assert_allclose(found[:, row, column], np.mean(several, 0), rtol=1e-5)


@pytest.mark.parametrize(("size", "windows"), [
    ((270, 480), 1), ((405, 720), 1), ((540, 960), 1), ((675, 1200), 2), ((810, 1440), 2), ((945, 1680), 2),
    ((1080, 1920), 6),
])  # fmt: skip
def test_the_published_windows_of_each_view(size: tuple[int, int], windows: int) -> None:
    seen = []

    def count(images: Tensor) -> Tensor:
        seen.append(images.shape)
        return images

    slide(count, torch.zeros(1, 1, *size), (1024, 1024), (768, 768))
    assert len(seen) == windows


# Runs


def streets(model: VisionModel, out: Path, method: str, protocol: str | Protocol = "cyclic,rounds=1") -> Result:
    options: dict[str, Any] = {"images": 2, "domains": ["fog", "night"], "batch_size": 2, "preset": "none"}
    return run("streets", method, model=model, out=out, protocol=protocol, **options)


@pytest.mark.parametrize("method", ["tent", "testdg"])
def test_views_change_the_scores_and_not_what_is_learnt(model: VisionModel, tmp_path: Path, method: str) -> None:
    plain = streets(model, tmp_path, method)
    many = streets(model, tmp_path, method, "cyclic,rounds=1,views=2,window=64x96,stride=48x64")
    assert many.folder != plain.folder
    assert [d.scores["miou"] for d in many.domains] != [d.scores["miou"] for d in plain.domains]
    states = [(result.folder / "state" / "state.safetensors").read_bytes() for result in (plain, many)]
    assert states[0] == states[1]


def test_held_out_domains_are_predicted_on_views_as_well(model: VisionModel, tmp_path: Path) -> None:
    """Source gives the same predictions whether a batch is learnt from or not."""
    result = streets(model, tmp_path, "source", "leave-one-out,held_out=night,views=2")
    learnt = streets(model, tmp_path, "source", "cyclic,rounds=1,views=2")
    assert result.held_out is not None
    assert result.held_out[0].scores["miou"] == learnt.domains[1].scores["miou"]
    assert result.held_out[0].scores["miou"] != streets(model, tmp_path, "source").domains[1].scores["miou"]


def test_views_are_in_the_record_and_separate_results(model: VisionModel, tmp_path: Path) -> None:
    plain = streets(model, tmp_path, "source")
    many = streets(model, tmp_path, "source", "cyclic,rounds=1,views=8,window=64x96,stride=48x64")
    words = "8 (sizes 0.5 1 1.5 2, each plain and mirrored) in windows of 64 x 96 px, stride 48 x 64"
    assert json.loads((many.folder / "result.json").read_text())["protocol"]["views"] == words
    assert plain.record["views"] == "one"
    assert not comparable(plain, many)
    assert any(line.endswith(f"seed 0, views {words}") for line in record_lines(many.record))
    assert any(line.endswith("seed 0, single view") for line in record_lines(plain.record))
    slid = read_protocol("cyclic,window=64x96,stride=48x64").make_views().describe()
    lines = record_lines({**plain.record, "views": slid})
    assert any(line.endswith("seed 0, single view in windows of 64 x 96 px, stride 48 x 64") for line in lines)


@pytest.mark.parametrize(
    ("protocol", "values"),
    [
        ("cyclic,views=3", ("1, 2, 8 or 14", "got 3")),
        ("cyclic,window=64", ("window", "64")),
        ("cyclic,window=0x8,stride=1x1", ("window", "0x8")),
        ("cyclic,window=8x8", ("window and stride",)),
        ("cyclic,stride=8x8", ("window and stride",)),
        ("cyclic,window=8x8,stride=8x9", ("8x9", "8x8")),
    ],
)
def test_mistakes_are_refused(protocol: str, values: tuple[str, ...]) -> None:
    with refused("wrong-protocol", *values):
        read_protocol(protocol)


def test_views_are_for_segmentation() -> None:
    with refused("wrong-task", "digits-c", "segmentation"):
        run("digits-c", "source", protocol="continual,views=2")


def test_pictures_that_are_too_small_for_the_model_are_refused(model: VisionModel) -> None:
    least = model.smallest  # type: ignore[attr-defined]
    adapter = adapt(model, "source")
    assert Views().predict(adapter, pictures(1, (least, 64)), SIZE).isfinite().all()
    with pytest.raises(RuntimeError, match="Kernel size"):
        model.network(pixel_values=pictures(1, (least - 1, 64)))
    for views, size in ((Views(), (least - 1, 64)), (Views(8), (least, 64)), (Views(1, (1, 96), (1, 96)), SIZE)):
        with refused("image-shape", "random", f"{least} x {least}"):
            views.predict(adapter, pictures(1, size), SIZE)
