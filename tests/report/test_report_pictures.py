"""The panel of a segmentation run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from testdg.data.benchmarks import load_benchmark
from testdg.methods import adapt
from testdg.models import Preprocessing, load_model
from testdg.models.segformer import tiny_segformer
from testdg.report.pictures import PanelRow, default_palette, draw_panel, paint, picture_miou, take_samples
from testdg.runs import run

PALETTE = ((250, 0, 0), (0, 250, 0), (0, 0, 250))


def sample(domain: str) -> PanelRow:
    label = torch.zeros(24, 40, dtype=torch.uint8)
    label[:, 20:] = 1
    label[:4] = 255
    wrong = torch.full((24, 40), 2)
    return PanelRow(domain, torch.rand(3, 24, 40), label, before=wrong, after=label.long().where(label != 255, 0))


def test_a_map_is_painted_in_the_colours_of_its_classes() -> None:
    painted = paint(np.array([[0, 2], [255, 1]], np.uint8), PALETTE)
    assert painted.tolist() == [[[250, 0, 0], [0, 0, 250]], [[0, 0, 0], [0, 250, 0]]]


def test_the_default_palette_has_different_colours() -> None:
    assert len(set(default_palette(30))) == 30


def test_a_panel_shows_picture_predictions_and_label_of_every_domain(tmp_path: Path) -> None:
    path = draw_panel(
        tmp_path / "p.png", [sample("fog"), sample("night")], ["Source", "TENT"], "abc", PALETTE, "t", "n"
    )
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape[1] > 1000
    quarter = pixels.shape[1] // 4
    blue = (pixels == (0, 0, 250)).all(2)
    red = (pixels == (250, 0, 0)).all(2)
    assert blue[:, quarter : 2 * quarter].mean() > 0.3  # the wrong prediction
    assert red[:, 2 * quarter : 3 * quarter].mean() > 0.1  # the right one
    assert red[:, 3 * quarter :].mean() > 0.1  # the label
    assert [file.name for file in tmp_path.iterdir()] == ["p.png"]


def legend_of(monkeypatch: pytest.MonkeyPatch, path: Path, one: PanelRow, classes: int) -> tuple[list[str], int]:
    """Names and columns of the legend of a panel."""
    drawn: dict[str, Any] = {}
    legend = Figure.legend
    monkeypatch.setattr(Figure, "legend", lambda self, **more: [drawn.update(more), legend(self, **more)][1])
    draw_panel(path, [one], ["Source", "TENT"], [f"class {number}" for number in range(classes)])
    monkeypatch.undo()
    return [patch.get_label() for patch in drawn["handles"]], drawn["ncols"]


def test_a_legend_has_rows_of_equal_length_and_names_ignored_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, columns = legend_of(monkeypatch, tmp_path / "p.png", sample("fog"), 10)
    assert (names[-2:], columns) == (["class 9", "ignored"], 6)
    whole = sample("fog")._replace(label=torch.zeros(24, 40, dtype=torch.uint8))
    names, columns = legend_of(monkeypatch, tmp_path / "p.png", whole, 10)
    assert (names[-1], columns) == ("class 9", 10)


def test_the_score_of_a_picture() -> None:
    one = sample("fog")
    assert picture_miou(one.before, one.label, 3) == 0
    assert picture_miou(one.after, one.label, 3) == 100
    assert picture_miou(one.after, torch.full_like(one.label, 255), 3) is None


def test_samples_are_predicted_by_the_model_and_by_the_final_state_of_the_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = load_model(tiny_segformer(9), preprocessing=Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3))
    bench = load_benchmark("streets", images=2, domains=["fog", "snow", "rain"])
    settings = {"learning_rate": 0.05, "batch_statistics": False}
    result = run(bench, "tent", model=model, out=tmp_path, settings=settings, protocol="continual", batch_size=2)
    samples = take_samples(result.folder, bench, model)
    assert [one.domain for one in samples] == ["fog", "snow", "rain"]
    adapter = adapt(model, "tent", **settings)
    for batch in bench.stream(2):
        adapter(batch.images)
    images, labels = bench.domain("snow").read(1, 2)  # the second picture of the second domain
    assert torch.equal(samples[1].image, images[0])
    assert torch.equal(samples[1].label, labels[0])
    with torch.no_grad():
        assert torch.equal(samples[1].before, model(images).logits[0].argmax(0))
    assert torch.equal(samples[1].after, adapter.predict(images)[0].argmax(0))
    assert not torch.equal(samples[1].after, samples[1].before)
