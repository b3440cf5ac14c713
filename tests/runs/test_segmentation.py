"""The score of segmentation, and runs that end in it."""

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
from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import Domain, LabelledImages, Sampling, Stream
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.models.segformer import tiny_segformer
from testdg.runs import DomainResult, Result, read_result, run, source_model
from testdg.runs.protocol import Visit
from testdg.runs.result import Tally
from testdg.runs.scores import Segmentation, find_score, measure

SCORE = Segmentation()
NOBODY = torch.zeros(0)


def one_hot(predictions: Tensor, classes: int) -> Tensor:
    """Logits (N, C, H, W) that predict a map."""
    return F.one_hot(predictions.long(), classes).movedim(-1, 1).float()


def score(predictions: Tensor, labels: Tensor, classes: int) -> dict[str, Any]:
    SCORE.check(labels, classes)
    sums = SCORE.rows(one_hot(predictions, classes), labels, NOBODY).sum(0)
    packed = json.loads(json.dumps(SCORE.pack(sums.tolist())))
    return SCORE.metrics(SCORE.unpack(packed), len(labels))


def maps(seed: int, classes: int, size: tuple[int, int, int], ignored: float = 0.2) -> tuple[Tensor, Tensor]:
    """Random predictions, and labels that agree with them in places."""
    generator = torch.Generator().manual_seed(seed)
    predictions, other = torch.randint(0, classes, (2, *size), generator=generator)
    labels = torch.where(torch.rand(size, generator=generator) < 0.5, predictions, other)
    labels[torch.rand(size, generator=generator) < ignored] = 255
    return predictions, labels.byte()


def test_label_maps_without_a_class_have_no_score() -> None:
    found = score(torch.zeros(1, 2, 2), torch.full((1, 2, 2), 255, dtype=torch.uint8), 2)
    assert found == {"error": 0.0, "miou": None, "class_iou": [None, None]}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 7), height=st.integers(1, 6), width=st.integers(1, 6))
def test_the_score_is_that_of_sets_of_pixels(seed: int, classes: int, height: int, width: int) -> None:
    predictions, labels = maps(seed, classes, (3, height, width))
    found = score(predictions, labels, classes)
    valid = labels.flatten() != 255
    seen, true = predictions.flatten()[valid], labels.flatten()[valid]
    for number, value in enumerate(found["class_iou"]):
        ours, theirs = ({i for i, c in enumerate(part.tolist()) if c == number} for part in (seen, true))
        assert value == (pytest.approx(100 * len(ours & theirs) / len(ours | theirs)) if ours | theirs else None)
    known = [value for value in found["class_iou"] if value is not None]
    assert found["miou"] == (pytest.approx(sum(known) / len(known)) if known else None)
    if valid.any():
        assert found["error"] == pytest.approx(100 * float((seen != true).double().mean()))


def test_logits_are_enlarged_to_the_size_of_the_labels_before_the_largest_is_taken() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator)
    labels = torch.randint(0, 3, (2, 8, 10), generator=generator).byte()
    large = F.interpolate(logits, (8, 10), mode="bilinear", align_corners=False)
    counts = np.zeros((3, 3))
    np.add.at(counts, (labels.flatten().numpy(), large.argmax(1).flatten().numpy()), 1)
    assert np.array_equal(SCORE.pack(SCORE.rows(logits, labels, NOBODY).sum(0).tolist())["confusion"], counts)


@pytest.mark.parametrize("kind", ["file", "mixed"])
def test_what_batches_add_up_to_does_not_depend_on_their_size(kind: Any) -> None:
    domains = []
    for number, size in enumerate([5, 3]):
        predictions, labels = maps(number, 4, (size, 6, 7))
        pictures = predictions[:, None].expand(-1, 3, -1, -1).byte()
        domains.append(Domain(f"d{number}", None, LabelledImages(pictures, labels), labels))

    def scores(batch_size: int) -> list[DomainResult]:
        stream = Stream(domains, batch_size, Sampling(kind))
        tally = Tally(SCORE, [Visit(domain.name, None, 1, True) for domain in domains])
        for batch in stream:
            guess = one_hot((batch.images[:, 0] * 255).round(), 4)
            parts, sums = measure(SCORE, stream, batch, guess)
            packed = [SCORE.pack(row) for row in sums.tolist()]
            tally.add([{"parts": [{**part, **more} for part, more in zip(parts, packed, strict=True)]}])
        return tally.results(learn=True)

    assert scores(1) == scores(4) == scores(100)
    assert scores(1)[0].scores["miou"] != scores(1)[1].scores["miou"]


@pytest.mark.parametrize(
    ("labels", "code", "values"),
    [
        (torch.full((1, 2, 2), 9, dtype=torch.uint8), "label-range", (3, 255, 9)),
        (torch.zeros(4, dtype=torch.int64), "label-shape", ("(4,)",)),
    ],
)
def test_labels_that_do_not_fit_the_model_are_refused(labels: Tensor, code: str, values: tuple[Any, ...]) -> None:
    with refused(code, *values):
        SCORE.check(labels, 4)


# Runs


@pytest.fixture
def model() -> VisionModel:
    torch.manual_seed(0)
    return load_model(tiny_segformer(9), preprocessing=Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3), name="random")


def streets(model: VisionModel, out: Path, method: str = "source", **more: Any) -> Result:
    options = {"images": 3, "domains": ["fog", "night"], "batch_size": 2, "preset": "none"}
    return run("streets", method, model=model, out=out, **{**options, **more})


def test_a_run_visits_the_domains_in_three_rounds_and_keeps_every_score(model: VisionModel, tmp_path: Path) -> None:
    result = streets(model, tmp_path)
    assert result.record["kind"] == "cyclic"
    assert [(d.name, d.round) for d in result.domains] == [(n, r) for r in (1, 2, 3) for n in ("fog", "night")]
    assert result.domains[0].scores["miou"] == result.domains[2].scores["miou"]  # Source learns nothing
    bench = load_benchmark("streets", images=3, domains=["fog"])
    images, labels = bench.domain("fog").read(0, 3)
    with torch.no_grad():
        wanted = score(model(images).logits.argmax(1), labels, 9)
    assert result.domains[0].scores["miou"] == wanted["miou"]
    assert result.domains[0].class_iou == wanted["class_iou"]
    stored = json.loads((result.folder / "result.json").read_text())
    assert {**result.to_dict(), **{key: stored[key] for key in ("checksum", "events")}} == stored
    assert stored["means"]["miou"] == result.mean_score
    assert stored["classes"][6] == "sky"
    assert stored["domains"][1]["round"] == 1
    assert read_result(result.folder) == result


def test_a_model_with_other_classes_is_refused(tmp_path: Path) -> None:
    bench = load_benchmark("streets", images=1)
    with refused("wrong-classes", 5, "streets", 9):
        source_model(bench, load_model(tiny_segformer(5)))
    with refused("wrong-task", "segmentation", "digits-c", "classification"):
        source_model(load_benchmark("digits-c", images=1), load_model(tiny_segformer(10)))


def test_each_task_has_the_number_that_its_tables_show() -> None:
    shown = {task: find_score(task).metric for task in ("segmentation", "classification")}
    found = {task: (metric.key, metric.title, metric.higher) for task, metric in shown.items()}
    assert found == {"segmentation": ("miou", "mIoU, %", True), "classification": ("error", "error, %", False)}
