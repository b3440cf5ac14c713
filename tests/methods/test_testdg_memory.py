"""Section 3.2: the queue of the current domain and the prototypes of previous ones."""

from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testdg.methods.testdg.memory import Prototypes, Queue

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def push(queue: Queue, images: int, generator: torch.Generator, cells: int = 1) -> None:
    """Push embeddings that tell their image and their cell."""
    first = queue.position
    rows = [[float(image), float(cell)] for image in range(first, first + images) for cell in range(cells)]
    queue.push(torch.tensor(rows), images, generator)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 12), batches=st.lists(st.integers(1, 15), max_size=8), cells=st.sampled_from([1, 4]))
def test_a_queue_holds_the_newest_oldest_first(length: int, batches: list[int], cells: int) -> None:
    queue, expected, image = Queue(length, 2, CPU), deque[tuple[int, int]](maxlen=length), 0
    for size in batches:
        push(queue, size, seeded(), cells)
        expected.extend((image + i, cell) for i in range(size) for cell in range(cells))
        image += size
        embeddings, positions = queue.content()
        assert [(int(a), int(b)) for a, b in embeddings.tolist()] == list(expected)
        assert positions.tolist() == [position for position, _ in expected]
        assert len(queue) == len(expected)


@pytest.mark.parametrize("reservoir", [False, True])
def test_an_emptied_queue_goes_on_at_its_place_in_the_stream(reservoir: bool) -> None:
    queue = Queue(4, 2, CPU, reservoir)
    push(queue, 6, seeded())
    queue.clear()
    assert len(queue) == 0
    assert queue.content()[0].shape == (0, 2)
    push(queue, 3, seeded())
    embeddings, positions = queue.content()
    assert positions.tolist() == [6, 7, 8]
    assert embeddings[:, 0].tolist() == [6, 7, 8]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), length=st.integers(1, 12), batches=st.lists(st.integers(1, 15), max_size=8))
def test_a_reservoir_holds_different_images_each_with_its_embedding(seed: int, length: int, batches: list[int]) -> None:
    queue, generator = Queue(length, 2, CPU, reservoir=True), seeded(seed)
    for size in batches:
        push(queue, size, generator)
        embeddings, positions = queue.content()
        assert embeddings[:, 0].long().tolist() == positions.tolist()
        assert len(set(positions.tolist())) == len(positions) == len(queue) == min(queue.position, length)
        assert 0 <= int(positions.min()) <= int(positions.max()) < queue.position


def test_a_reservoir_is_a_uniform_sample() -> None:
    repeats, length, total = 1200, 10, 60
    counts, generator = torch.zeros(total), seeded()
    for _ in range(repeats):
        queue = Queue(length, 2, CPU, reservoir=True)
        for size in (7, 20, 1, 32):  # several of a batch may want one place
            push(queue, size, generator)
        counts[queue.content()[1]] += 1
    share = length / total
    deviation = (repeats * share * (1 - share)) ** 0.5
    assert (counts - repeats * share).abs().max() < 4 * deviation
    assert abs(float(counts[:27].mean()) - repeats * share) < 4 * deviation / 27**0.5


@pytest.mark.parametrize("domains", [1, 3, 5])
def test_prototypes_keep_the_last_domains_newest_last(domains: int) -> None:
    prototypes, sizes = Prototypes(2, 4, domains, CPU), [4, 1, 3, 4, 2, 4, 4]
    assert len(prototypes) == 0
    for domain, size in enumerate(sizes):
        position = 100 * domain + torch.arange(size)
        prototypes.add(torch.stack([position.float(), torch.ones(size)], 1), position)
        first = max(0, domain + 1 - domains)
        expected = [100 * d + i for d in range(first, domain + 1) for i in range(sizes[d])]
        assert prototypes.current[:, 0].tolist() == expected
        assert prototypes.positions[: len(prototypes)].tolist() == expected
    assert prototypes.embeddings.shape == (4 * domains, 2)
