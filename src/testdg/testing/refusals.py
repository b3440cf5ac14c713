"""What no adapter lets pass: bad batches, half steps, states that do not fit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.models import Output, VisionModel
from testdg.testing.battery import MakeAdapter, assert_equal, check, difference, snapshot, stream


@check("a bad batch is refused and leaves the state unchanged")
def _bad(make: MakeAdapter) -> None:
    adapter = make()
    images = stream(adapter, 1)[0]
    adapter(images)
    before = snapshot(adapter)
    spoiled = [images.clone() for _ in range(4)]
    spoiled[0][0, 0, 0, 0] = float("nan")
    spoiled[1][0, 0, 0, 0] = float("inf")
    spoiled[2][0, 0, 0, 0] = 255.0
    spoiled[3][0, 0, 0, 0] = -0.5
    for bad in (*spoiled, (images * 255).to(torch.uint8), images[:, :2], images[0], images[:0]):
        for call in (adapter, adapter.predict):
            try:
                call(bad)
            except ValueError:
                assert difference(before, snapshot(adapter)) is None, "a refused batch changed the state"
            else:
                raise AssertionError(f"{bad.dtype} images of shape {tuple(bad.shape)} were not refused")


MOMENTS = 30
"""Moments of a step that is made to fail; of more, as with many views, an even part."""


@check("a step that fails leaves the state unchanged")
def _all_or_nothing(make: MakeAdapter) -> None:
    adapter, twin = make(), make()
    for images in stream(adapter, 4):
        with failing(twin) as moments:
            expected = twin(images)
        assert moments, "the step makes no pass of a model"
        before = snapshot(adapter)
        for at in range(0, len(moments), -(-len(moments) // MOMENTS)):
            _fail(adapter, images, at)
            changed = difference(before, snapshot(adapter))
            assert changed is None, f"a failure where {moments[at]} ({at}) changed {changed}"
        assert torch.equal(adapter(images), expected), "failures before it changed a prediction"
        assert_equal(adapter, twin)


def _fail(adapter: Adapter, images: Tensor, at: int) -> None:
    try:
        with failing(adapter, at):
            adapter(images)
    except Injected:
        return
    raise AssertionError(f"a failure at moment {at} was swallowed")


@check("a state that does not fit is refused and changes nothing")
def _misfits(make: MakeAdapter) -> None:
    adapter, other = make(), make()
    for images in stream(adapter, 3):
        adapter(images)
    tensors, values = snapshot(adapter)
    before = snapshot(other)
    names = [*tensors][:: -(-len(tensors) // 60)]  # of many, an even part
    for name, value in [(name, tensors[name]) for name in names]:
        wrong = value.new_zeros((*value.shape, 2))
        kind = torch.float16 if value.dtype != torch.float16 else torch.float32
        for spoiled in ({**tensors, name: wrong}, {**tensors, name: value.to(kind)}):
            _assert_refused(other, spoiled, values, name)
    _assert_refused(other, {**tensors, "nobody": torch.zeros(1)}, values, "nobody")
    for key in values:
        _assert_refused(other, tensors, {name: value for name, value in values.items() if name != key}, key)
    assert (changed := difference(before, snapshot(other))) is None, f"a refused state changed {changed}"
    other.load_state(tensors, values)
    assert_equal(adapter, other)


def _assert_refused(adapter: Adapter, tensors: dict[str, Tensor], values: dict[str, Any], name: str) -> None:
    try:
        adapter.load_state(tensors, values)
    except UserError as error:
        told = str(error)
    else:
        raise AssertionError(f"a wrong {name} was accepted")
    assert name in told, f"a wrong {name} is not named: {told}"


class Injected(RuntimeError):
    """A failure that is put into a step, as if memory had run out there."""


@contextmanager
def failing(adapter: Adapter, at: int | None = None) -> Iterator[list[str]]:
    """Make a step fail at its `at`-th moment (not at all for None); gives the moments that passed, by what happened.

    A moment is the beginning or the end of a pass of a network, or the beginning of a backward pass.
    """
    moments: list[str] = []

    def pass_by(what: str) -> None:
        moments.append(what)
        if len(moments) - 1 == at:
            raise Injected(f"injected at moment {at}: {what}")

    def watched(name: str, run: Callable[[Tensor], Output]) -> Callable[[Tensor], Output]:
        def watch(images: Tensor) -> Output:
            pass_by(f"{name} begins")
            output = run(images)
            pass_by(f"{name} ends")
            return output

        return watch

    models = [(name, part) for name, part in adapter.named_modules() if isinstance(part, VisionModel)]
    for name, model in models:
        model.__dict__["run"] = watched(name, model.run)
    grad = torch.autograd.grad

    def backward(*inputs: Any, **options: Any) -> Any:
        pass_by("backward")
        return grad(*inputs, **options)

    torch.autograd.grad = backward
    try:
        yield moments
    finally:
        torch.autograd.grad = grad
        for _, model in models:
            del model.__dict__["run"]
