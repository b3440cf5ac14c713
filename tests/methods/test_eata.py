"""EATA: what it learns from, the penalty on forgetting, and source data before the stream."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.errors import refused
from support.literal import literal_loss
from support.networks import confident
from testdg.data.benchmarks import load_benchmark
from testdg.errors import UserError
from testdg.methods.eata import Eata
from testdg.methods.source import Source
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.runs import run
from testdg.runs.source import TrainingImages
from testdg.testing import check_adapter, stream


def pixels_as_logits(classes: int = 3) -> VisionModel:
    """Predicts by the mean of each channel, times fifty, so that a test can choose the predictions."""
    head = nn.Linear(3, classes, bias=False)
    with torch.no_grad():
        head.weight.copy_(50 * torch.eye(classes, 3))
    norm = nn.BatchNorm2d(3)
    network = nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return load_model(network, preprocessing=Preprocessing((2, 2)), name="pixels")


def images_of(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)[:, :, None, None].expand(-1, -1, 2, 2)


SURE_0, SURE_1, UNSURE = [0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.5, 0.5, 0.5]


def eta(model: VisionModel, **settings: Any) -> Eata:
    return Eata(model, fisher=False, batch_statistics=False, **{"redundancy": 0.5, **settings})


def test_unreliable_and_redundant_predictions_are_left_out() -> None:
    adapter = eta(pixels_as_logits())
    adapter(images_of(SURE_0, UNSURE, SURE_0))
    assert (int(adapter.diagnostics["reliable"]), int(adapter.diagnostics["learnt_from"])) == (2, 2)
    torch.testing.assert_close(adapter.usual, torch.tensor([1.0, 0.0, 0.0]), rtol=0, atol=1e-4)
    adapter(images_of(SURE_0, UNSURE, SURE_1))  # the first is like what was learnt from before
    assert (int(adapter.diagnostics["reliable"]), int(adapter.diagnostics["learnt_from"])) == (2, 1)
    torch.testing.assert_close(adapter.usual, torch.tensor([0.9, 0.1, 0.0]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_nothing_moves_where_nothing_is_chosen(optimizer: Any) -> None:
    adapter = eta(pixels_as_logits(), learning_rate=0.1, optimizer=optimizer)
    adapter(images_of([0.6, 0.58, 0.5], SURE_1))
    before, usual = adapter.learner.parameters_[0].detach().clone(), adapter.usual.clone()
    adapter(images_of(UNSURE, UNSURE))
    assert torch.equal(adapter.learner.parameters_[0], before)
    assert torch.equal(adapter.usual, usual)
    assert adapter.skipped == 0


@pytest.mark.parametrize("loss", ["entropy", "come"])
def test_a_step_is_the_formula(vit: VisionModel, loss: Any) -> None:
    model = confident(vit, 20.0)
    adapter = warm(Eata(model, learning_rate=0.1, fisher_weight=3.0, redundancy=0.9, loss=loss))
    for images in stream(adapter, 3, 8):
        usual = adapter.usual.double()
        source = [value.double() for value in adapter.importance.anchor.values()]
        before = [p.detach().clone() for p in adapter.learner.parameters_]
        momenta = [adapter.learner.optimizer.state[p]["momentum_buffer"].clone() for p in adapter.learner.parameters_]
        logits = adapter.model(images).logits
        limit, terms = 0.4 * math.log(10), []
        for row in logits:
            entropy, p = literal_loss(row, loss), row.detach().double().softmax(0)
            value = float(entropy.detach())
            alike = float(p @ usual / p.norm() / usual.norm()) if usual.any() else 0.0
            if value < limit and abs(alike) < 0.9:
                terms.append(entropy * math.exp(limit - value))
        assert terms, "nothing is chosen, so that nothing is tested"
        flat = torch.cat([p.flatten() for p in adapter.learner.parameters_]).double()
        penalty = (adapter.importance.fisher.double() * (flat - torch.cat([v.flatten() for v in source])) ** 2).sum()
        gradients = torch.autograd.grad(sum(terms) / len(terms) + 3 * penalty, adapter.learner.parameters_)
        adapter(images)
        assert int(adapter.diagnostics["learnt_from"]) == len(terms)
        for parameter, old, momentum, gradient in zip(
            adapter.learner.parameters_, before, momenta, gradients, strict=True
        ):
            torch.testing.assert_close(parameter, old - 0.1 * (0.9 * momentum + gradient), rtol=1e-4, atol=1e-6)


def warm(adapter: Eata) -> Eata:
    adapter.warm_up(stream(adapter, 2, 4, seed=1))
    return adapter


@pytest.mark.parametrize("as_released", [False, True])
def test_fisher_against_a_loop(vit: VisionModel, as_released: bool) -> None:
    adapter = warm(Eata(vit, as_released=as_released))
    batches = stream(adapter, 2, 4, seed=1)
    parts = batches if as_released else list(torch.cat(batches).split(1))
    total = torch.zeros_like(adapter.importance.fisher)
    for images in parts:
        logits = adapter.model(images).logits
        gradients = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1)), adapter.learner.parameters_)
        total += torch.cat([gradient.flatten() for gradient in gradients]) ** 2
    torch.testing.assert_close(adapter.importance.fisher, total / len(parts))
    assert float(total.max()) > 0


# Source data before the stream


def test_labels_that_are_declared_and_not_read_are_noticed(vit: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eata, "source_labels", True)
    with pytest.raises(AssertionError, match="source_labels is True, but other labels change nothing"):
        check_adapter(lambda **settings: Eata(vit, **settings), only="source labels are read only where declared")


def test_warming_up_comes_once_and_before_the_stream(vit: VisionModel) -> None:
    adapter = warm(Eata(vit))
    with refused("already-started"):
        warm(adapter)
    with refused("no-effect"):
        Source(vit).warm_up([])


def test_source_images_are_drawn_by_the_seed(vit: VisionModel) -> None:
    benchmark = load_benchmark("digits-c", images=4)

    def drawn(seed: int) -> tuple[Tensor, Tensor]:
        images, labels = zip(*TrainingImages(benchmark).batches(Eata(vit, source_images=100, seed=seed)), strict=True)
        assert [len(part) for part in images] == [64, 36]
        return torch.cat(images), torch.cat(labels)

    images, labels = drawn(0)
    clean = benchmark.train()
    known = {image.numpy().tobytes(): int(label) for image, label in zip(clean.images, clean.labels, strict=True)}
    levels = (images * 255).round().to(torch.uint8)
    assert [known[image.numpy().tobytes()] for image in levels] == labels.tolist()
    assert torch.equal(drawn(0)[0], images)
    assert not torch.equal(drawn(1)[0], images)
    assert not Eata(vit, fisher=False).awaits_source


def test_a_run_fetches_source_data(vit: VisionModel, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"settings": {"source_images": 20}, "images": 8, "domains": ["fog"], "out": tmp_path}
    result = run("digits-c", "eata", model=vit, **chosen)
    assert len(result.domains) == 1
    assert run("digits-c", "eata", model=vit, **chosen).domains == result.domains


def test_a_run_tells_what_is_missing_and_writes_nothing(
    vit: VisionModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = load_benchmark("digits-c", images=8, domains=["fog"])

    def train() -> None:
        raise UserError("the training images are not there: add them")

    monkeypatch.setattr(benchmark, "train", train)
    with refused("no-source-data", "eata"):
        run(benchmark, "eata", model=vit, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
