"""A guard around adapters: what it skips, undoes and remembers."""

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import testdg
from support.errors import refused
from testdg import adapt, load_benchmark
from testdg.core.guard import Decision, Guard, guard
from testdg.core.online import load_online
from testdg.data.stream import to_float
from testdg.models import VisionModel
from testdg.runs import source_model

METHODS = ("tent", "eata", "sar", "cotta", "roid", "align", "testdg", "testdg_aligned")


class Digits:
    """The embedded digits and the model that was trained on them."""

    def __init__(self) -> None:
        benchmark = load_benchmark("digits-c")
        test, train = benchmark.test(), benchmark.train()
        self.images, self.labels = to_float(test.images), test.labels
        self.train, self.train_labels = to_float(train.images), train.labels
        self.model: VisionModel = source_model(benchmark)

    def guarded(self, method: str, **settings: Any) -> Guard:
        kind = testdg.methods.find_method(method)
        adapter = adapt(self.model, method, **{**kind.presets.get("digits-c", {}), **settings})
        if adapter.awaits_source:
            order = torch.arange(adapter.source_images()) % len(self.train)
            adapter.warm_up((self.train[part], self.train_labels[part]) for part in order.split(64))
        return guard(adapter, self.train[-100:])

    def error(self, adapter: Any) -> float:
        found = torch.cat([adapter.predict(part).argmax(1) for part in self.images.split(200)])
        return 100 * float((found != self.labels).float().mean())

    def shuffled(self, batches: int, size: int = 20) -> Iterator[Tensor]:
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(0))
        yield from (self.images[part] for part in order.split(size)[:batches])


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits()


def bad_stream(digits: Digits, kind: str, batches: int, size: int) -> Iterator[Tensor]:
    threes = digits.images[digits.labels == 3]
    generator = torch.Generator().manual_seed(0)
    for _ in range(batches):
        if kind == "noise":
            yield torch.rand(size, 3, 32, 32, generator=generator)
        elif kind == "one class":
            yield threes[torch.randperm(len(threes), generator=generator)[:size]]
        else:
            yield {"black": torch.zeros(size, 3, 32, 32), "one frame": digits.images[:1].expand(size, -1, -1, -1)}[kind]


@pytest.mark.parametrize("kind", ["black", "noise", "one frame", "one class"])
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_stream_does_not_ruin_a_model(method: str, kind: str, digits: Digits) -> None:
    before = digits.error(digits.guarded("source"))
    adapter = digits.guarded(method)
    for images in bad_stream(digits, kind, 20, 20):
        adapter(images)
    assert digits.error(adapter) <= before + 3
    if kind != "one class" or not adapter.handles_bunches:
        assert adapter.counts["skip"] >= 18
    assert all(decision.reason for decision in adapter.decisions)


@pytest.mark.parametrize("scale", [100, 10_000])
@pytest.mark.parametrize("method", ["tent", "roid", "testdg_aligned"])
def test_a_rate_that_is_far_too_high_does_not_ruin_a_model(method: str, scale: int, digits: Digits) -> None:
    settings = digits.guarded(method).settings
    adapter = digits.guarded(method, learning_rate=scale * settings.learning_rate)
    for images in digits.shuffled(12):
        adapter(images)
    assert digits.error(adapter) <= digits.error(digits.guarded("source")) + 3
    assert adapter.counts["roll back"] == 2
    assert adapter.counts["fall back"] == 1
    assert adapter.pause > 0


def test_without_a_guard_it_would(digits: Digits) -> None:
    adapter = digits.guarded("tent", learning_rate=1.0).adapter
    for images in digits.shuffled(12):
        adapter(images)
    assert digits.error(adapter) > 50


def test_an_honest_stream_is_learnt_as_without_a_guard(digits: Digits) -> None:
    one, other = digits.guarded("testdg_aligned"), digits.guarded("testdg_aligned").adapter
    for images in digits.shuffled(6):
        assert torch.equal(one(images), other(images))
    assert set(one.counts.values()) == {0}
    assert "guard" not in one.diagnostics


def test_what_is_not_worth_learning_from_in_a_batch_is_predicted(digits: Digits) -> None:
    adapter = digits.guarded("tent")
    images = next(digits.shuffled(1)).clone()
    images[3] = 0.0
    reference = digits.guarded("tent").adapter
    expected = torch.cat([reference.predict(images[3:4]), reference(images[torch.arange(20) != 3])])
    found = adapter(images)
    torch.testing.assert_close(found[3], expected[0])
    torch.testing.assert_close(found[torch.arange(20) != 3], expected[1:])


def test_every_decision_is_reported(digits: Digits) -> None:
    told: list[Decision] = []
    adapter = guard(adapt(digits.model, "tent"), digits.train[:50], on_decision=told.append)
    adapter(torch.zeros(4, 3, 32, 32))
    assert told == list(adapter.decisions)
    assert (told[0].batch, told[0].action, told[0].code) == (0, "skip", "one-colour")
    assert adapter.diagnostics == {"guard": "skip", "guard_code": "one-colour", "guard_reason": told[0].reason}


def test_a_row_of_skipped_batches_is_one_decision(digits: Digits) -> None:
    adapter, stream = guard(adapt(digits.model, "tent"), digits.train[:50]), digits.shuffled(4)
    black, white = torch.zeros(4, 3, 32, 32), torch.ones(4, 3, 32, 32)
    noise = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for images in (black, black, white, noise, noise, next(stream), noise, black):
        adapter(images)
        assert bool(adapter.decision) == (len(images) == 4)
    found = [(decision.batch, decision.code) for decision in adapter.decisions]
    assert found == [(0, "one-colour"), (3, "noise"), (6, "noise"), (7, "one-colour")]
    assert adapter.counts["skip"] == 7


@pytest.mark.parametrize("method", ["tent", "testdg_aligned"])
def test_images_that_are_no_digits_any_more_do_not_ruin_a_model(method: str, digits: Digits) -> None:
    """Inverted images look like pictures, and each image is another one: only the probe shows the harm."""
    adapter = digits.guarded(method)
    before = digits.error(adapter)
    for images in digits.shuffled(40):
        adapter(1 - images)
    for images in digits.shuffled(30):
        adapter(1 - images.flip(0))
    assert digits.error(adapter) <= before + 3


def test_statistics_of_a_distant_stream_leave_clean_images_alone(digits: Digits) -> None:
    adapter = digits.guarded("align")
    before = digits.error(adapter)
    for images in digits.shuffled(8):
        adapter(0.5 + 0.05 * (images - 0.5))
    assert adapter.counts["roll back"] == 0  # the memory is of use in this stream
    assert digits.error(adapter) <= before + 3


def test_after_two_troubles_one_batch_in_four_is_learnt_from(digits: Digits) -> None:
    adapter = digits.guarded("tent", learning_rate=1e-9)
    adapter.counters.troubles = 2
    learnt = []
    for images in digits.shuffled(8):
        adapter(images)
        learnt.append(adapter.learnt)
    assert learnt == [True, False, False, False] * 2
    assert {decision.code for decision in adapter.decisions} == {"learns-slowly"}


def test_a_decision_names_the_image_that_the_model_returned_to(digits: Digits) -> None:
    adapter = digits.guarded("tent", learning_rate=1.0)
    adapter.adapter.learner.scale_rates(1e-6)
    for images in digits.shuffled(6):
        adapter(images)
    back = adapter.snapshots[-1].image
    assert back > 0
    adapter.adapter.learner.scale_rates(1.0)
    while not adapter.counts["roll back"]:
        adapter(digits.images[:20])
    assert f"image {back:,} is undone" in adapter.decisions[-1].reason


def test_it_begins_to_learn_again_after_a_pause(digits: Digits) -> None:
    adapter, stream = digits.guarded("tent", learning_rate=10.0), digits.shuffled(30)
    while not adapter.counts["fall back"]:
        adapter(next(stream))
    first = adapter.pause
    adapter.counters.pause = 10
    adapter(next(stream))
    assert adapter.pause <= 0
    while adapter.counts["fall back"] < 2:
        adapter(next(stream))
    assert adapter.pause == 2 * first


def test_without_source_images_the_stream_gives_the_probe(digits: Digits) -> None:
    adapter = guard(adapt(digits.model, "tent", learning_rate=1e-3))
    for images in digits.shuffled(10):
        adapter(images)
    assert adapter.probe.ready
    assert adapter.probe.origin == "stream"
    assert len(adapter.probe.images) == 100


def test_images_of_the_warm_up_are_the_probe(digits: Digits) -> None:
    adapter = guard(adapt(digits.model, "testdg_aligned"))
    adapter.warm_up(digits.train[:256].split(64))
    assert adapter.probe.origin == "source"
    assert torch.equal(adapter.probe.images, digits.train[:100])


@pytest.mark.parametrize("method", ["tent", "testdg_aligned"])
def test_a_loaded_guard_continues_as_the_saved_one(method: str, digits: Digits, tmp_path: Path) -> None:
    stream = [*digits.shuffled(3), torch.zeros(20, 3, 32, 32), *bad_stream(digits, "one class", 3, 20)]
    one = digits.guarded(method, learning_rate=3e-3)
    for images in stream[:4]:
        one(images)
    one.save(tmp_path / "state")
    other = load_online(tmp_path / "state", digits.model)
    assert isinstance(other, Guard)
    assert other.counts == one.counts
    for images in [*stream[4:], *digits.shuffled(4)]:
        assert torch.equal(one(images), other(images))
    assert other.values() == one.values()


def pickled(adapter: Guard) -> Guard:
    copied: Guard = pickle.loads(pickle.dumps(adapter))
    return copied


@pytest.mark.parametrize("copying", [copy.deepcopy, pickled])
@pytest.mark.parametrize("method", ["tent", "testdg_aligned"])
def test_a_copy_of_a_guard_shares_nothing_with_it(
    method: str, copying: Callable[[Guard], Guard], digits: Digits
) -> None:
    first = digits.guarded(method)
    batches = [*digits.shuffled(8), *bad_stream(digits, "one frame", 2, 20)]
    for images in batches[:4]:
        first(images)
    copied = copying(first)
    alone = [first(images) for images in batches[4:]]
    assert all(torch.equal(copied(images), logits) for images, logits in zip(batches[4:], alone, strict=True))
    assert copied.counts == first.counts
    assert all(torch.equal(value, first.tensors()[name]) for name, value in copied.tensors().items())


def test_reset_starts_again(digits: Digits) -> None:
    adapter = digits.guarded("tent", learning_rate=10.0)
    for images in digits.shuffled(6):
        adapter(images)
    adapter.reset()
    assert set(adapter.counts.values()) == {0}
    assert adapter.pause == 0
    fresh = digits.guarded("tent", learning_rate=10.0)
    images = next(digits.shuffled(1))
    assert torch.equal(adapter(images), fresh(images))


def test_a_healthy_state_comes_back_on_request(digits: Digits) -> None:
    adapter = digits.guarded("tent", learning_rate=1e-4)
    with refused("no-healthy-state"):
        adapter.roll_back("too early")
    stream = digits.shuffled(3)
    adapter(next(stream))
    adapter(next(stream))
    before = {name: value.clone() for name, value in adapter.snapshots[-1].state[0].items()}
    adapter.health.checks.earned = -1e9  # no check, and no other snapshot
    adapter(next(stream))
    moved = adapter.adapter.tensors()
    assert not all(torch.equal(value, moved[name]) for name, value in before.items())
    adapter.roll_back("somebody wants it")
    back = adapter.adapter.tensors()
    assert all(torch.equal(value, back[name]) for name, value in before.items())
    assert adapter.counts["roll back"] == 1
    assert adapter.decisions[-1].reason.startswith("somebody wants it")
    assert adapter.decisions[-1].code == "requested"


def test_a_batch_that_is_refused_changes_nothing(digits: Digits) -> None:
    adapter = digits.guarded("tent")
    adapter(next(digits.shuffled(1)))
    before = {name: value.clone() for name, value in adapter.tensors().items()}
    values = adapter.values()
    for code, bad in (
        ("image-range", torch.full((2, 3, 32, 32), float("nan"))),
        ("image-range", torch.full((2, 3, 32, 32), 7.0)),
        ("image-shape", torch.rand(2, 32, 32)),
    ):
        with refused(code):
            adapter(bad)
    assert adapter.values() == values
    assert all(torch.equal(value, before[name]) for name, value in adapter.tensors().items())


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"patience": 0}, "guard-option", ("patience", 0)),
        ({"snapshots": 0}, "guard-option", ("snapshots", 0)),
        ({"probe": torch.zeros(3, 3, 32, 32, dtype=torch.uint8)}, "image-type", ("uint8",)),
        ({"probe": torch.full((3, 3, 32, 32), 9.0)}, "image-range", ("9",)),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, Any], code: str, values: tuple[object, ...], digits: Digits
) -> None:
    with refused(code, *values):
        guard(adapt(digits.model, "tent"), **options)


def test_after_a_fall_nothing_that_was_learnt_comes_back(digits: Digits) -> None:
    adapter, stream = digits.guarded("tent", learning_rate=10.0), digits.shuffled(30)
    source = {name: value.clone() for name, value in adapter.adapter.tensors().items()}
    while not adapter.counts["fall back"]:
        adapter(next(stream))
    snapshot, *others = adapter.snapshots
    assert not others
    assert all(torch.equal(snapshot.state[0][name], value) for name, value in source.items())


def test_load_online_finds_whether_a_guard_was_saved(digits: Digits, tmp_path: Path) -> None:
    adapter = digits.guarded("tent")
    adapter(next(digits.shuffled(1)))
    adapter.save(tmp_path / "guard")
    adapter.adapter.save(tmp_path / "plain")
    assert isinstance(load_online(tmp_path / "guard", digits.model), Guard)
    assert isinstance(load_online(tmp_path / "plain", digits.model), testdg.Adapter)
    with refused("other-state"):
        testdg.Adapter.load(tmp_path / "guard", digits.model)


def test_a_guard_is_not_lost_on_the_way_to_a_device(digits: Digits) -> None:
    with refused("guard-device"):
        digits.guarded("tent").to("cpu")


def test_a_pause_is_reported_without_older_decisions(digits: Digits) -> None:
    adapter, stream = digits.guarded("testdg_aligned"), digits.shuffled(3)
    adapter(next(stream))
    assert "gap" in adapter.diagnostics
    adapter.counters.pause = 50
    adapter(next(stream))
    assert adapter.diagnostics == {"guard_pause": 30}


def test_a_guard_that_was_made_before_the_warm_up_knows_what_that_made_of_the_model(digits: Digits) -> None:
    adapter = guard(adapt(digits.model, "ecotta", source_images=64), digits.train[-100:])
    with refused("no-source-data", "ecotta"):
        adapter(digits.images[:20])
    assert not adapter.snapshots
    adapter.warm_up([(digits.train[:64], digits.train_labels[:64])])
    for images in digits.shuffled(3):
        adapter(images)
    assert adapter.counts["roll back"] == 0
    images = digits.images[:20]
    adapter.adapter.reset()
    assert torch.equal(adapter.health.source_logits(images), adapter.adapter.predict(images))


def test_dear_methods_are_looked_at_more_often(digits: Digits) -> None:
    passes = {}
    for method in ("align", "tent", "testdg"):
        adapter = digits.guarded(method)
        for images in digits.shuffled(2):
            adapter(images)
        passes[method] = adapter.health.checks.passes
    assert passes["align"] == 1
    assert passes["tent"] == 3  # there and back
    assert passes["testdg"] > 3
