from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss
from torch import Tensor

from testdg.data.stream import Domain, Samples, Sampling, Stream
from testdg.errors import UserError
from testdg.runs.protocol import Visit
from testdg.runs.result import DomainResult, Tally
from testdg.runs.scores import Classification, find_score, measure

SCORE = Classification()


def make_stream(sizes: list[int], batch_size: int, sampling: Sampling) -> Stream:
    generator = torch.Generator().manual_seed(0)
    domains = []
    for number, size in enumerate(sizes):
        labels = torch.randint(0, 5, (size,), generator=generator)
        domains.append(Domain(f"d{number}", 5, Samples(torch.zeros(size, 3, 1, 1, dtype=torch.uint8), labels), labels))
    return Stream(domains, batch_size, sampling)


def guess(segments: Tensor, indices: Tensor) -> Tensor:
    """Logits of each image, whatever its batch."""
    rows = [
        torch.randn(5, generator=torch.Generator().manual_seed(1000 * s + i)) * 3 for s, i in _pairs(segments, indices)
    ]
    return torch.stack(rows)


def _pairs(segments: Tensor, indices: Tensor) -> list[tuple[int, int]]:
    return list(zip(segments.tolist(), indices.tolist(), strict=True))


def score_stream(stream: Stream) -> list[DomainResult]:
    tally = Tally(SCORE, [Visit(domain.name, 5, 1, True) for domain in stream.domains])
    for batch in stream:
        parts, sums = measure(SCORE, stream, batch, guess(batch.segments, batch.indices))
        tally.add([{"parts": [{**part, **SCORE.pack(row)} for part, row in zip(parts, sums.tolist(), strict=True)]}])
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


def test_hand_computed_scores() -> None:
    # Confidences 0.9 and 0.6 in different bins, right and wrong: gaps 0.1 and 0.6, calibration error 35 %.
    logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
    sums = SCORE.rows(logits, torch.tensor([0, 1]), torch.tensor([True, False])).sum(0)
    found = SCORE.metrics(sums.double().numpy(), 2)
    assert found["error"] == 50
    assert found["early_error"] == 0
    assert found["ece"] == pytest.approx(35, abs=1e-4)
    assert found["nll"] == pytest.approx(-(np.log(0.9) + np.log(0.4)) / 2, abs=1e-6)


def test_the_first_and_the_last_bin() -> None:
    """A uniform guess over 16 classes has confidence 1/16, below 1/15; a sure one has confidence 1."""
    row = SCORE.rows(torch.zeros(1, 16), torch.tensor([3]), torch.tensor([False]))[0]
    assert row[4:].nonzero().flatten().tolist() == [0]
    sure = SCORE.rows(torch.tensor([[50.0, 0.0]]), torch.tensor([1]), torch.tensor([False]))[0]
    assert sure[4:].nonzero().flatten().tolist() == [14]


def test_a_confidence_at_the_edge_of_two_bins_belongs_to_the_lower_one() -> None:
    shares = torch.tensor([[number / 15, 1 - number / 15] for number in range(8, 15)])
    rows = SCORE.rows(shares.log(), torch.zeros(7, dtype=torch.int64), torch.zeros(7, dtype=torch.bool))
    exact = [n for n in range(7) if float(shares[n].log().softmax(0)[0] * 15) == 8 + n]  # the others are rounded
    assert exact
    assert [rows[n, 4:].nonzero().flatten().tolist() for n in exact] == [[7 + n] for n in exact]


def test_what_is_not_finite_has_no_likelihood_but_an_error_and_spoils_no_other_domain() -> None:
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
    assert SCORE.unpack(SCORE.pack(sums)) == pytest.approx(sums, abs=1e-6)


def test_a_task_without_a_score_is_named() -> None:
    assert isinstance(find_score("classification"), Classification)
    with pytest.raises(UserError, match="unknown task 'clasification'; did you mean 'classification'"):
        find_score("clasification")
