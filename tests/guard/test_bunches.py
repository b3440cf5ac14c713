"""Guards on streams that show one class for long: methods that handle them go on, others pause, and a stuck camera."""

import copy

import pytest
import torch
from torch import Tensor

import testdg
from testdg import adapt, load_benchmark
from testdg.core.guard import Guard, guard
from testdg.data.stream import to_float
from testdg.methods.align import Align
from testdg.models import VisionModel
from testdg.runs import source_model

pytestmark = pytest.mark.usefixtures("shared_cache")


def threes(batches: int, size: int = 20) -> list[Tensor]:
    """Images of one class, no two alike: digits that are moved and dimmed."""
    test = load_benchmark("digits-c").test()
    images = to_float(test.images)[test.labels == 3]
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(images), (batches * size,), generator=generator).tolist()
    moves = torch.randint(-1, 2, (batches * size, 2), generator=generator).tolist()
    dims = (0.85 + 0.15 * torch.rand(batches * size, generator=generator)).tolist()
    made = [dim * images[number].roll(move, (1, 2)) for number, move, dim in zip(chosen, moves, dims, strict=True)]
    return list(torch.stack(made).split(size))


def shuffled(batches: int, size: int = 20) -> list[Tensor]:
    images = to_float(load_benchmark("digits-c").test().images)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return [images[part] for part in order.split(size)[:batches]]


def guarded(method: str) -> Guard:
    benchmark = load_benchmark("digits-c")
    model: VisionModel = source_model(benchmark)
    train = to_float(benchmark.train().images)
    adapter = adapt(model, method, **testdg.methods.find_method(method).presets.get("digits-c", {}))
    if adapter.awaits_source:
        adapter.warm_up(train[:256].split(64))
    return guard(adapter, train[-100:])


def error(adapter: Guard) -> float:
    test = load_benchmark("digits-c").test()
    found = torch.cat([adapter.predict(part).argmax(1) for part in to_float(test.images).split(200)])
    return 100 * float((found != test.labels).float().mean())


@pytest.mark.parametrize("method", ["align", "testdg_aligned"])
def test_a_method_that_handles_bunches_follows_a_run_of_one_class(method: str) -> None:
    adapter = guarded(method)
    before = error(adapter)
    for images in threes(8):
        adapter(images)
        assert adapter.learnt
    assert adapter.mix.one_sided  # the guard did notice
    assert adapter.counts == {"skip": 0, "roll back": 0, "fall back": 0}
    assert float(adapter.diagnostics["bunched"]) > 0
    assert int(adapter.stream_shift().argmax()) == 3
    assert error(adapter) <= before + 3  # on digits of all classes


def test_where_one_class_lasts_long_the_model_does_not_forget_the_others() -> None:
    adapter = guarded("align")
    before = error(adapter)
    for images in threes(40):
        adapter(images)
    assert error(adapter) <= before + 5


def test_another_method_is_not_let_through() -> None:
    adapter = guarded("tent")
    codes = []
    for images in threes(20):
        adapter(images)
        codes.append(adapter.event().get("guard_code"))
    assert codes.count("one-sided") >= 12


def test_a_stuck_camera_does_not_reach_the_class_mix() -> None:
    adapter = guarded("align")
    assert isinstance(adapter.adapter, Align)
    for images in shuffled(5):
        adapter(images)
    before = copy.deepcopy(adapter.adapter.class_mix.state_dict())  # type: ignore[union-attr]
    frame = shuffled(6)[5][:1]
    for _ in range(6):
        adapter(frame.expand(20, -1, -1, -1))
    assert adapter.counts["skip"] == 6
    assert {decision.code for decision in adapter.decisions} == {"same-frame"}
    after = adapter.adapter.class_mix.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not adapter.stream_shift().any()
