"""The checks: states, predictions, sizes, seeds, precision, invalid input, and injected failures."""

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testdg.core.state import Values, read_folder
from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.models import Output, VisionModel, load_model
from testdg.testing.battery import (
    MakeAdapter,
    assert_equal,
    check,
    difference,
    same_state,
    snapshot,
    source_batches,
    stream,
    warmed_up,
)

MOMENTS = 16
"""Maximum number of moments at which a step is made to fail; of more, an even selection."""


class Injected(RuntimeError):
    """An injected failure of a step."""


@contextmanager
def failing(adapter: Adapter, at: int | None = None) -> Iterator[list[str]]:
    """Make a step fail at its `at`-th moment (never for None); yields the names of the moments that passed.

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


def _lived(make: MakeAdapter, batches: int) -> Adapter:
    adapter = make()
    for images in stream(adapter)[:batches]:
        adapter(images)
    return adapter


@check("reset is exact")
def _reset(make: MakeAdapter) -> None:
    adapter = _lived(make, 4)
    adapter.reset()
    assert_equal(adapter, make())


@check("save, load, continue equals never stopped")
def _resume(make: MakeAdapter) -> None:
    adapter, whole = make(), make()
    batches = stream(adapter, 6)
    for images in batches[:4]:
        adapter(images), whole(images)
    with tempfile.TemporaryDirectory() as folder:
        adapter.save(Path(folder) / "state")
        tensors, about = read_folder(Path(folder) / "state")
    again = make()
    again.check_origin(about)
    again.load_state(tensors, about["values"])
    assert_equal(again, whole)
    for images in batches[4:]:
        assert torch.equal(again(images), whole(images)), "predictions differ after loading"
    assert_equal(again, whole)


@check("learning rate 0 is the source")
def _no_learning(make: MakeAdapter) -> None:
    rates = {f.name: 0.0 for f in fields(make().settings) if "learning_rate" in f.name}
    adapter = make(**rates)
    source = make().predicting_model()
    for images in stream(adapter):
        difference = (adapter(images) - source(source.prepare(images)).logits).abs().max()
        assert difference < 1e-5, f"prediction differs by {difference:g}"


@check("a batch of one and a short last batch")
def _sizes(make: MakeAdapter) -> None:
    adapter = make()
    for size in (1, 5, 1, 2, 1):
        logits = adapter(stream(adapter, 1, size)[0])
        assert logits.shape[:2] == (size, adapter.model.classes), f"logits have shape {logits.shape}"
        assert logits.isfinite().all(), "logits are not finite"


@check("same seed, same result")
def _seed(make: MakeAdapter) -> None:
    one, other = make(seed=3), make(seed=3)
    for images in stream(one):
        torch.rand(3)  # the global generator must not matter
        assert torch.equal(one(images), other(images)), "predictions differ"
    assert_equal(one, other)


@check("only declared parameters move")
def _declared(make: MakeAdapter) -> None:
    adapter = make()
    before = {name: value.detach().clone() for name, value in adapter.model.named_parameters()}
    for images in stream(adapter):
        adapter(images)
    declared = {name.removeprefix("model.") for name in adapter.trainable()}
    moved = {name for name, value in adapter.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved <= declared, f"{sorted(moved - declared)[:3]} moved"


@check("images and the given model are left alone")
def _untouched(make: MakeAdapter) -> None:
    adapter = make()
    given = make().predicting_model()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    wrapped = warmed_up(type(adapter))(model=given)
    images = stream(adapter, 1)[0]
    unchanged = images.clone()
    wrapped(images)
    assert torch.equal(images, unchanged), "the images changed"
    changed = [name for name, value in given.state_dict().items() if not torch.equal(value, before[name])]
    assert not changed, f"the given model changed: {changed[:3]}"


@check("source labels are read only where declared", warm=False)
def _source_labels(make: MakeAdapter) -> None:
    adapter, other = make(), make()
    if not adapter.awaits_source:
        return
    batches = source_batches(adapter)
    adapter.warm_up(batches)
    if adapter.source_labels:
        with suppress(UserError):
            make().warm_up(images for images, _ in batches)
            raise AssertionError("source_labels is True, but images without labels were accepted")
        other.warm_up((images, labels.flip(0)) for images, labels in batches)
        assert same_state(adapter, other) is not None, "source_labels is True, but other labels change nothing"
    else:
        other.warm_up(images for images, _ in batches)
        assert_equal(adapter, other)


@check("gradients of the caller do not matter")
def _no_grad(make: MakeAdapter) -> None:
    plain, silent, inference = make(), make(), make()
    for images in stream(plain):
        logits = plain(images)
        assert not logits.requires_grad, "logits require gradients"
        with torch.no_grad():
            assert torch.equal(silent(images), logits), "torch.no_grad changes the result"
        with torch.inference_mode():
            assert torch.equal(inference(images), logits), "torch.inference_mode changes the result"
    assert_equal(plain, silent)


@check("predict changes nothing")
def _predict(make: MakeAdapter) -> None:
    adapter = make()
    batches = stream(adapter)
    adapter(batches[0])
    before = snapshot(adapter)
    first = adapter.predict(batches[1])
    assert torch.equal(first, adapter.predict(batches[1])), "two predictions of one batch differ"
    assert difference(before, snapshot(adapter)) is None, "predict changed the state"


@check("the adapted model predicts what predict does")
def _adapted(make: MakeAdapter) -> None:
    adapter = _lived(make, 3)
    try:
        model = adapter.adapted_model()
    except UserError as error:
        if (reason := adapter.why_not_exportable()) is None or reason not in str(error):
            raise AssertionError(f"why_not_exportable() does not say why: {reason}, and {error}") from error
        return
    _assert_predicts(model, adapter)


@check("the exported model predicts what predict does")
def _exported(make: MakeAdapter) -> None:
    adapter = _lived(make, 3)
    with tempfile.TemporaryDirectory() as folder:
        try:
            adapter.export(folder)
        except UserError as error:
            if "save()" not in str(error):
                raise AssertionError(f"an export that is refused must name save(): {error}") from error
            return
        _assert_predicts(load_model(folder), adapter)


@torch.no_grad()
def _assert_predicts(model: VisionModel, adapter: Adapter) -> None:
    for images in stream(adapter):
        difference = (adapter.predict(images) - model(model.prepare(images)).logits).abs().max()
        assert difference < 1e-5, f"predictions differ by {difference:g}"


@check("a deep copy continues in the same way")
def _copied(make: MakeAdapter) -> None:
    adapter = _lived(make, 2)
    copied = copy.deepcopy(adapter)
    for images in stream(adapter, seed=1):
        assert torch.equal(copied(images), adapter(images)), "the copy predicts otherwise"
    assert_equal(copied, adapter)


@check("memory is bounded")
def _memory(make: MakeAdapter) -> None:
    adapter = make()
    sizes = []
    for _ in range(2):
        for images in stream(adapter, 12):
            adapter(images)
        sizes.append(sum(value.numel() for value in adapter.tensors().values()))
    assert sizes[1] <= sizes[0], f"the state grew from {sizes[0]} to {sizes[1]} numbers"


@check("bf16 stays finite")
def _bf16(make: MakeAdapter) -> None:
    adapter = make(precision="bf16")
    for images in stream(adapter):
        logits = adapter(images)
        assert logits.dtype == torch.float32, f"logits are {logits.dtype}"
        assert logits.isfinite().all(), "logits are not finite"
    assert all(p.dtype == torch.float32 for p in adapter.parameters()), "weights left float32"
    assert adapter.skipped == 0, f"{adapter.skipped} updates were skipped"


@check("repr shows the settings")
def _repr(make: MakeAdapter) -> None:
    text = repr(make(seed=77))
    assert "seed=77" in text, text
    assert "\n" not in text, text


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
            with suppress(ValueError):
                call(bad)
                raise AssertionError(f"{bad.dtype} images of shape {tuple(bad.shape)} were not refused")
            assert difference(before, snapshot(adapter)) is None, "a refused batch changed the state"


@check("a step that fails leaves the state unchanged")
def _all_or_nothing(make: MakeAdapter) -> None:
    adapter, twin = make(), make()
    for images in stream(adapter, 4):
        with failing(twin) as moments:
            expected = twin(images)
        assert moments, "the step makes no pass of a model"
        before = snapshot(adapter)
        for at in range(0, len(moments), -(-len(moments) // MOMENTS)):
            with suppress(Injected), failing(adapter, at):
                adapter(images)
                raise AssertionError(f"a failure at moment {at} was swallowed")
            changed = difference(before, snapshot(adapter))
            assert changed is None, f"a failure where {moments[at]} ({at}) changed {changed}"
        assert torch.equal(adapter(images), expected), "failures before it changed a prediction"
        assert_equal(adapter, twin)


@check("a state that does not fit is refused and changes nothing")
def _misfits(make: MakeAdapter) -> None:
    adapter, other = make(), make()
    for images in stream(adapter, 3):
        adapter(images)
    tensors, values = snapshot(adapter)
    before = snapshot(other)
    names = [*tensors][:: -(-len(tensors) // 60)]  # of many, an even selection
    for name, value in [(name, tensors[name]) for name in names]:
        wrong = value.new_zeros((*value.shape, 2))
        kind = torch.float16 if value.dtype != torch.float16 else torch.float32
        for spoiled in ({**tensors, name: wrong}, {**tensors, name: value.to(kind)}):
            _assert_refused(other, spoiled, values, name)
    _assert_refused(other, {**tensors, "unknown": torch.zeros(1)}, values, "unknown")
    for key in values:
        _assert_refused(other, tensors, {name: value for name, value in values.items() if name != key}, key)
    assert (changed := difference(before, snapshot(other))) is None, f"a refused state changed {changed}"
    other.load_state(tensors, values)
    assert_equal(adapter, other)


def _assert_refused(adapter: Adapter, tensors: dict[str, Tensor], values: Values, name: str) -> None:
    try:
        adapter.load_state(tensors, values)
    except UserError as error:
        message = str(error)
    else:
        raise AssertionError(f"a wrong {name} was accepted")
    assert name in message, f"a wrong {name} is not named: {message}"
