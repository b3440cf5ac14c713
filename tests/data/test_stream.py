from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.errors import refused
from testdg.data.stream import Domain, LabelledImages, Sampling, Segment, Stream


def domain(name: str, size: int, base: int = 0) -> Domain:
    levels = (torch.arange(size) + base).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    labels = torch.arange(size)
    return Domain(name, 5, LabelledImages(levels, labels), labels)


sizes = st.lists(st.integers(1, 17), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(sizes=sizes, batch_size=st.integers(1, 20))
def test_batches_cover_every_domain_in_order_and_never_span_two(sizes: list[int], batch_size: int) -> None:
    stream = Stream([domain(f"d{i}", size) for i, size in enumerate(sizes)], batch_size)
    batches = list(stream)
    assert [b.number for b in batches] == list(range(len(stream)))
    for index, size in enumerate(sizes):
        mine = [b for b in batches if index in b.segments]
        assert all(set(b.segments.tolist()) == {index} and b.name == f"d{index}" for b in mine)
        assert [i for b in mine for i in b.indices.tolist()] == list(range(size))
        assert [i for b in mine for i in b.positions.tolist()] == list(range(size))
        assert torch.cat([b.labels for b in mine]).tolist() == list(range(size))
        assert {len(b.labels) for b in mine[:-1]} <= {batch_size}
        assert stream.ends_domain(mine[-1].number)
        assert not any(stream.ends_domain(b.number) for b in mine[:-1])
        assert [b.number for b in mine if stream.starts_domain(b.number)] == [mine[0].number]


samplings = st.builds(Sampling, st.sampled_from(["file", "mixed", "dirichlet"]), seed=st.integers(0, 99))


@settings(max_examples=60, deadline=None)
@given(sizes=sizes, batch_size=st.integers(1, 20), sampling=samplings, data=st.data())
def test_starting_at_a_batch_is_the_tail_of_the_stream(
    sizes: list[int], batch_size: int, sampling: Sampling, data: st.DataObject
) -> None:
    def stream() -> Stream:
        return Stream([domain(f"d{i}", size, i * 20) for i, size in enumerate(sizes)], batch_size, sampling)

    start = data.draw(st.integers(0, len(stream())))
    tail, whole = list(stream().batches(start)), list(stream())[start:]
    assert [b.number for b in tail] == [b.number for b in whole]
    assert all(torch.equal(a.images, b.images) for a, b in zip(tail, whole, strict=True))


@settings(max_examples=60, deadline=None)
@given(sizes=sizes, batch_size=st.integers(1, 20), sampling=samplings)
def test_every_image_comes_once_with_its_own_label_and_place(
    sizes: list[int], batch_size: int, sampling: Sampling
) -> None:
    stream = Stream([domain(f"d{i}", size, i * 20) for i, size in enumerate(sizes)], batch_size, sampling)
    seen: list[tuple[int, int]] = []
    before = [0] * len(sizes)
    for batch in stream:
        levels = (batch.images[:, 0, 0, 0] * 255).round().int()
        assert levels.tolist() == (batch.segments * 20 + batch.indices).tolist()
        assert batch.labels.tolist() == batch.indices.tolist()
        for segment, index, position in zip(batch.segments, batch.indices, batch.positions, strict=True):
            assert position == before[segment]
            before[segment] += 1
            seen.append((int(segment), int(index)))
    assert sorted(seen) == [(s, i) for s, size in enumerate(sizes) for i in range(size)]


def test_mixed_batches_span_domains_and_other_samplings_do_not() -> None:
    domains = [domain(f"d{i}", 10) for i in range(4)]
    mixed = list(Stream(domains, 10, Sampling("mixed")))
    assert all(b.name == "mixed" and len(set(b.segments.tolist())) > 1 for b in mixed)
    bunched = list(Stream(domains, 10, Sampling("dirichlet")))
    assert [set(b.segments.tolist()) for b in bunched] == [{0}, {1}, {2}, {3}]


def test_rounds_and_tests_are_mixed_each_for_itself() -> None:
    domains = [domain(f"d{i}", 5) for i in range(2)]
    segments = [Segment(d, number) for number in (1, 2) for d in domains] + [Segment(d, 1, False) for d in domains]
    stream = Stream(segments, 4, Sampling("mixed"))
    assert [(b.block.round, b.learn) for b in stream] == [(1, True)] * 3 + [(2, True)] * 3 + [(1, False)] * 3
    for first, batch in zip([0, 0, 0, 2, 2, 2, 4, 4, 4], stream, strict=True):
        assert set(batch.segments.tolist()) <= {first, first + 1}
    orders = [[b.indices.tolist() for b in stream][first : first + 3] for first in (0, 3)]
    assert orders[0] != orders[1]
    assert [n for n in range(9) if stream.ends_domain(n)] == [2, 5, 8]


def test_images_are_floats_between_0_and_1() -> None:
    batch = Stream([domain("d", 3, 253)], 3)[0]
    assert batch.images.dtype == torch.float32
    assert batch.images[:, 0, 0, 0].tolist() == pytest.approx([253 / 255, 254 / 255, 1])
    assert batch.labels.dtype == torch.int64


def test_seeking_reads_nothing_before_the_start() -> None:
    class Counting(LabelledImages):
        reads: ClassVar[list[tuple[int, int]]] = []

        def read(self, start: int, stop: int) -> torch.Tensor:
            self.reads.append((start, stop))
            return super().read(start, stop)

    source = Counting(torch.zeros(10, 3, 2, 2, dtype=torch.uint8), torch.arange(10))
    next(Stream([Domain("d", 5, source, source.labels)], 4).batches(2))
    assert source.reads == [(8, 10)]


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_size_below_one_is_refused(batch_size: int) -> None:
    with refused("wrong-batch-size", batch_size):
        Stream([domain("d", 3)], batch_size)


def test_a_batch_that_does_not_exist_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="1"):
        Stream([domain("d", 3)], 4)[1]


LABELS = torch.arange(10).repeat(60)  # 600 images, classes in turn


def runs(labels: torch.Tensor) -> int:
    """Number of stretches of one class."""
    return 1 + int((labels[1:] != labels[:-1]).sum())


@settings(max_examples=50, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    kind=st.sampled_from(["file", "mixed", "dirichlet"]),
    concentration=st.floats(1e-6, 1e6),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_order_is_a_permutation(labels: list[int], kind: str, concentration: float, seed: int) -> None:
    order = Sampling(kind, concentration, seed).order(torch.tensor(labels), 3)  # type: ignore[arg-type]
    assert sorted(order.tolist()) == list(range(len(labels)))


def test_the_order_depends_on_seed_and_number_alone() -> None:
    for kind in ("mixed", "dirichlet"):
        orders = [Sampling(kind, seed=seed).order(LABELS, number) for seed, number in [(0, 0), (0, 1), (1, 0)]]
        assert torch.equal(orders[0], Sampling(kind).order(LABELS, 0))
        assert not any(torch.equal(orders[0], other) for other in orders[1:])
    assert Sampling("file", seed=7).order(LABELS, 2).tolist() == list(range(600))


def test_a_small_concentration_bunches_classes_and_a_large_one_does_not() -> None:
    found = [runs(LABELS[Sampling("dirichlet", delta).order(LABELS, 0)]) for delta in (1e-4, 0.1, 1.0, 1e4)]
    assert found == sorted(found)
    assert found[0] < 300  # nearly every class wholly in one slot; a few share one
    assert found[3] == pytest.approx(540, abs=30)  # 9 of 10 neighbours differ, as after a plain shuffle


def test_a_large_concentration_gives_every_slot_its_share() -> None:
    shown = LABELS[Sampling("dirichlet", 1e6).order(LABELS, 0)]
    for slot in shown.split(60):
        assert np.abs(np.bincount(slot, minlength=10) - 6).max() <= 1
