"""One battery of checks for every adapter, a user's own included."""

import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testdg.errors import UserError
from testdg.failures import Injected, failing
from testdg.methods import Adapter
from testdg.methods.state import read_folder
from testdg.models import VisionModel, load_model

MakeAdapter = Callable[..., Adapter]
Check = Callable[[MakeAdapter], None]
CHECKS: dict[str, Check] = {}


def check_adapter(make_adapter: MakeAdapter, *, only: str | None = None) -> list[str]:
    """Run the battery on `make_adapter(**settings)`, which builds a fresh adapter around the same model each time.

    Raises AssertionError, with the name of the check, at the first law that does not hold. Checks that the method
    declares as exceptions for this model are left out. Returns the names of the checks that ran.
    """
    make_adapter = _warmed_up(make_adapter)
    adapter = make_adapter()
    excused = adapter.exceptions(adapter.model)
    assert excused.keys() <= CHECKS.keys(), f"exceptions name unknown checks: {sorted(excused.keys() - CHECKS.keys())}"
    chosen = [name for name in CHECKS if name not in excused and only in (None, name)]
    for name in chosen:
        try:
            CHECKS[name](make_adapter)
        except AssertionError as error:
            raise AssertionError(f"{adapter.name} on {adapter.model.name}: {name}: {error}") from error
    return chosen


def _warmed_up(make_adapter: MakeAdapter) -> MakeAdapter:
    """Make adapters that have seen source data, where they need some."""

    def make(**settings: Any) -> Adapter:
        adapter = make_adapter(**settings)
        if adapter.awaits_source:
            labels = torch.arange(6) % adapter.model.classes
            if adapter.model.task == "segmentation":
                labels = labels.view(6, 1, 1).expand(6, 8, 8)
            batches = max(2, -(-adapter.least_source_images // 6))
            adapter.warm_up((images, labels) for images in stream(adapter, batches, 6, seed=1))
        return adapter

    return make


def check(name: str) -> Callable[[Check], Check]:
    """Add a check to the battery."""

    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


def stream(adapter: Adapter, batches: int = 4, size: int = 6, seed: int = 0) -> list[Tensor]:
    """Batches of smooth random images whose brightness and noise change half way."""
    generator = torch.Generator().manual_seed(seed)
    height, width = adapter.model.preprocessing.input_size or (32, 32)
    drawn = []
    for k in range(batches):
        coarse = torch.rand(size, adapter.model.channels, 4, 4, generator=generator)
        images = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
        if k >= batches // 2:
            images = (0.3 * images + 0.6 + 0.1 * torch.randn(images.shape, generator=generator)).clamp(0, 1)
        drawn.append(images.to(adapter.model.device))
    return drawn


def same_state(one: Adapter, other: Adapter) -> str | None:
    """Name the first difference between the states of two adapters; None where they are equal, bit for bit."""
    return _difference(snapshot(one), snapshot(other))


def snapshot(adapter: Adapter) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Copy everything that the next batch depends on."""
    return {name: value.clone() for name, value in adapter.tensors().items()}, adapter.values()


def _difference(one: tuple[dict[str, Tensor], Any], other: tuple[dict[str, Tensor], Any]) -> str | None:
    if one[0].keys() != other[0].keys():
        return f"tensors {sorted(one[0].keys() ^ other[0].keys())}"
    for name, value in one[0].items():
        if not torch.equal(value.cpu(), other[0][name].cpu()):
            return name
    return None if one[1] == other[1] else f"values {one[1]} and {other[1]}"


def _assert_equal(one: Adapter, other: Adapter) -> None:
    difference = same_state(one, other)
    assert difference is None, f"states differ in {difference}"


@check("reset is exact")
def _reset(make: MakeAdapter) -> None:
    adapter = make()
    for images in stream(adapter):
        adapter(images)
    adapter.reset()
    _assert_equal(adapter, make())


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
    _assert_equal(again, whole)
    for images in batches[4:]:
        assert torch.equal(again(images), whole(images)), "predictions differ after loading"
    _assert_equal(again, whole)


@check("learning rate 0 is the source")
def _no_learning(make: MakeAdapter) -> None:
    rates = {f.name: 0.0 for f in fields(make().settings) if "learning_rate" in f.name}
    adapter = make(**rates)
    source = make().adapted_model()
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
    _assert_equal(one, other)


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
    given = make().adapted_model()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    wrapped = _warmed_up(type(adapter))(model=given)
    images = stream(adapter, 1)[0]
    kept = images.clone()
    wrapped(images)
    assert torch.equal(images, kept), "the images changed"
    changed = [name for name, value in given.state_dict().items() if not torch.equal(value, before[name])]
    assert not changed, f"the given model changed: {changed[:3]}"


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
    _assert_equal(plain, silent)


@check("predict changes nothing")
def _predict(make: MakeAdapter) -> None:
    adapter = make()
    batches = stream(adapter)
    adapter(batches[0])
    before = snapshot(adapter)
    first = adapter.predict(batches[1])
    assert torch.equal(first, adapter.predict(batches[1])), "two predictions of one batch differ"
    assert _difference(before, snapshot(adapter)) is None, "predict changed the state"


@check("the adapted model predicts what predict does")
def _adapted(make: MakeAdapter) -> None:
    adapter = make()
    batches = stream(adapter)
    for images in batches[:3]:
        adapter(images)
    if adapter.beyond_weights() is None:
        _assert_predicts(adapter.adapted_model(), adapter, batches)


@check("the exported model predicts what predict does")
def _exported(make: MakeAdapter) -> None:
    adapter = make()
    batches = stream(adapter)
    for images in batches[:3]:
        adapter(images)
    with tempfile.TemporaryDirectory() as folder:
        try:
            adapter.export(folder)
        except UserError as error:
            if "save()" not in str(error):
                raise AssertionError(f"an export that is refused must name the way out: {error}") from error
            return
        _assert_predicts(load_model(folder), adapter, batches)


@torch.no_grad()
def _assert_predicts(model: VisionModel, adapter: Adapter, batches: list[Tensor]) -> None:
    for images in batches:
        difference = (adapter.predict(images) - model(model.prepare(images)).logits).abs().max()
        assert difference < 1e-5, f"predictions differ by {difference:g}"


@check("memory is bounded")
def _memory(make: MakeAdapter) -> None:
    adapter = make()
    sizes = []
    for _ in range(2):
        for images in stream(adapter, 24, 12):
            adapter(images)
        sizes.append(sum(value.numel() for value in adapter.tensors().values()))
    assert sizes[1] <= sizes[0], f"the state grew from {sizes[0]} to {sizes[1]} numbers"


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
                assert _difference(before, snapshot(adapter)) is None, "a refused batch changed the state"
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
            difference = _difference(before, snapshot(adapter))
            assert difference is None, f"a failure where {moments[at]} ({at}) changed {difference}"
        assert torch.equal(adapter(images), expected), "failures before it changed a prediction"
        _assert_equal(adapter, twin)


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
    assert (changed := _difference(before, snapshot(other))) is None, f"a refused state changed {changed}"
    other.load_state(tensors, values)
    _assert_equal(adapter, other)


def _assert_refused(adapter: Adapter, tensors: dict[str, Tensor], values: dict[str, Any], name: str) -> None:
    try:
        adapter.load_state(tensors, values)
    except UserError as error:
        told = str(error)
    else:
        raise AssertionError(f"a wrong {name} was accepted")
    assert name in told, f"a wrong {name} is not named: {told}"


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
