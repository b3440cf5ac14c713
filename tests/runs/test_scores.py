import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from support.errors import refused
from testdg.data.stream import Domain, LabelledImages, Sampling, Stream
from testdg.runs.protocol import Visit
from testdg.runs.result import DomainResult, Tally
from testdg.runs.scores import Answers, Classification, Column, Metric, Score, Sums, find_score, measure

SCORE = Classification()


def make_stream(sizes: list[int], batch_size: int, sampling: Sampling) -> Stream:
    generator = torch.Generator().manual_seed(0)
    domains = []
    for number, size in enumerate(sizes):
        labels = torch.randint(0, 5, (size,), generator=generator)
        domains.append(
            Domain(f"d{number}", 5, LabelledImages(torch.zeros(size, 3, 1, 1, dtype=torch.uint8), labels), labels)
        )
    return Stream(domains, batch_size, sampling)


def guess(segments: Tensor, indices: Tensor) -> Tensor:
    """Logits of each image, whatever its batch."""
    rows = [
        torch.randn(5, generator=torch.Generator().manual_seed(1000 * s + i)) * 3 for s, i in _pairs(segments, indices)
    ]
    return torch.stack(rows)


def _pairs(segments: Tensor, indices: Tensor) -> list[tuple[int, int]]:
    return list(zip(segments.tolist(), indices.tolist(), strict=True))


def score_stream(stream: Stream, score: Score = SCORE) -> list[DomainResult]:
    tally = Tally(score, [Visit(domain.name, 5, 1, True) for domain in stream.domains])
    for batch in stream:
        parts, sums = measure(score, stream, batch, guess(batch.segments, batch.indices))
        tally.add([{"parts": [{**part, **score.pack(row)} for part, row in zip(parts, sums.tolist(), strict=True)]}])
    return tally.results(learn=True)


def brute_force_calibration(probabilities: Any, labels: Any) -> float:
    """The textbook form: bins of the largest probability, accuracy against confidence, weighted by size."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


@pytest.mark.parametrize("kind", ["file", "mixed", "dirichlet"])
@pytest.mark.parametrize("batch_size", [1, 7, 200])
def test_scores_are_those_of_independent_references(kind: Any, batch_size: int) -> None:
    stream = make_stream([83, 60], batch_size, Sampling(kind))
    for number, found in enumerate(score_stream(stream)):
        labels = stream.domains[number].labels.numpy()
        logits = guess(torch.full((len(labels),), number), torch.arange(len(labels)))
        probabilities = logits.double().softmax(1).numpy()
        assert found.images == len(labels)
        assert found.error == pytest.approx(100 * (probabilities.argmax(1) != labels).mean())
        assert found.scores["nll"] == pytest.approx(log_loss(labels, probabilities, labels=range(5)), rel=1e-4)
        assert found.scores["ece"] == pytest.approx(100 * brute_force_calibration(probabilities, labels), abs=1e-3)


@pytest.mark.parametrize("kind", ["file", "mixed", "dirichlet"])
@pytest.mark.parametrize(("size", "early"), [(1, 1), (10, 1), (11, 2), (30, 3)])
def test_forward_transfer_looks_at_the_first_tenth_that_is_shown(kind: Any, size: int, early: int) -> None:
    stream = make_stream([size, 40], 7, Sampling(kind))
    shown = [
        (i, int(label))
        for batch in stream
        for (s, i), label in zip(_pairs(batch.segments, batch.indices), batch.labels, strict=True)
        if s == 0
    ][:early]
    wrong = sum(int(guess(torch.tensor([0]), torch.tensor([i])).argmax()) != label for i, label in shown)
    assert score_stream(stream)[0].scores["early_error"] == pytest.approx(100 * wrong / early)


def bins(logits: Tensor, labels: Tensor) -> list[list[int]]:
    """The bins of the calibration error that each image adds to."""
    rows = SCORE.rows(logits, labels, torch.zeros(len(labels), dtype=torch.bool))
    return [[int(number) for number in SCORE.pack(row)["gaps"]] for row in rows.tolist()]


def test_the_first_and_the_last_bin() -> None:
    """A uniform guess over 16 classes has confidence 1/16, below 1/15; a sure one has confidence 1."""
    assert bins(torch.zeros(1, 16), torch.tensor([3])) == [[0]]
    assert bins(torch.tensor([[50.0, 0.0]]), torch.tensor([1])) == [[14]]


def test_a_confidence_at_the_edge_of_two_bins_belongs_to_the_lower_one() -> None:
    shares = torch.tensor([[number / 15, 1 - number / 15] for number in range(8, 15)])
    found = bins(shares.log(), torch.zeros(7, dtype=torch.int64))
    exact = [n for n in range(7) if float(shares[n].log().softmax(0)[0] * 15) == 8 + n]  # the others are rounded
    assert exact
    assert [found[n] for n in exact] == [[7 + n] for n in exact]


def test_non_finite_logits_have_an_error_but_no_likelihood_and_affect_only_their_domain() -> None:
    stream = make_stream([4, 4], 8, Sampling("mixed"))
    (batch,) = stream
    logits = guess(batch.segments, batch.indices)
    logits[batch.segments == 0] = torch.nan
    parts, sums = measure(SCORE, stream, batch, logits)
    tally = Tally(SCORE, [Visit(name, 5, 1, True) for name in ("d0", "d1")])
    tally.add([{"parts": [{**part, **SCORE.pack(row)} for part, row in zip(parts, sums.tolist(), strict=True)]}])
    bad, good = tally.results(learn=True)
    assert bad.scores.keys() & {"nll", "ece"} == set()
    assert 0 <= bad.error <= 100
    assert {"nll", "ece"} <= good.scores.keys()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=19, max_size=19))
def test_packing_loses_nothing_but_decimals(values: list[float]) -> None:
    sums = [float(round(abs(v))) if n in (0, 2, 3) else v for n, v in enumerate(values)]
    packed = SCORE.pack(sums)
    assert list(packed) == ["errors", "nll", "early", "gaps"]
    assert SCORE.unpack(json.loads(json.dumps(packed))) == pytest.approx(sums, abs=1e-6)


# A metric of a test: it is not a mean over images, and follows from two histograms of the confidence.

FINE = 200


def histograms(answers: Answers) -> Tensor:
    """A one in the bin of the confidence, of wrong predictions first, (N, 2 * FINE)."""
    confidence = answers.logs.amax(1).exp()
    places = (confidence * FINE).long().clamp(max=FINE - 1) + FINE * answers.right
    return F.one_hot(places, 2 * FINE)


def auroc(sums: Sums, images: int) -> float | None:
    """The chance that a correct prediction is surer than a wrong one; within a bin, one half."""
    wrong, right = np.split(sums["confidences"], 2)
    below = np.cumsum(wrong) - wrong / 2
    pairs = wrong.sum() * right.sum()
    return 100 * float((right * below).sum() / pairs) if pairs else None


AUROC = Metric(
    "auroc", "AUROC", higher=True, columns=(Column("confidences", histograms, 2 * FINE),), compute=auroc
)  # fmt: skip


def test_a_metric_that_is_not_a_mean_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classification, "others", (*Classification.others, AUROC))
    stream = make_stream([83, 60], 7, Sampling("mixed"))
    for number, found in enumerate(score_stream(stream, Classification())):
        labels = stream.domains[number].labels.numpy()
        logits = guess(torch.full((len(labels),), number), torch.arange(len(labels)))
        confidence, predicted = (values.numpy() for values in logits.softmax(1).max(1))
        expected = roc_auc_score(predicted == labels, np.floor(confidence * FINE))
        assert found.scores["auroc"] == pytest.approx(100 * expected)
        assert found.scores.keys() >= {"error", "early_error", "nll", "ece"}


def test_a_metric_without_a_value_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classification, "others", (AUROC,))
    score = Classification()
    row = score.rows(torch.tensor([[9.0, 0.0]]), torch.tensor([0]), torch.tensor([False]))[0]
    assert score.metrics(row.double().numpy(), 1) == {"error": 0.0, "auroc": None}  # there is no wrong prediction


def test_a_log_that_is_older_than_a_metric_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels, early = torch.tensor([[9.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]), torch.tensor([True, False])
    old = Classification()
    sums = old.rows(logits, labels, early).double().sum(0)
    part, expected = {"segment": 0, "images": 2, **old.pack(sums.tolist())}, old.metrics(sums.numpy(), 2)
    monkeypatch.setattr(Classification, "others", (*Classification.others, AUROC))
    tally = Tally(Classification(), [Visit("fog", 5, 1, True)])
    tally.add([{"parts": [part, part]}])
    (found,) = tally.results(learn=True)
    assert found.scores == pytest.approx(expected, abs=1e-4)  # as many as before: the new one has no value
    del part["errors"]
    with pytest.raises(KeyError):
        tally.add([{"parts": [part]}])


def test_an_unknown_task_is_refused() -> None:
    assert isinstance(find_score("classification"), Classification)
    with refused("unknown-task", "clasification", "classification"):
        find_score("clasification")
