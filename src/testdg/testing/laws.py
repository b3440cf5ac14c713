"""What every adapter does: states, predictions, sizes, seeds, precision."""

import tempfile
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.methods.state import read_folder
from testdg.models import VisionModel, load_model
from testdg.testing.battery import MakeAdapter, assert_equal, check, difference, snapshot, stream, warmed_up


@check("reset is exact")
def _reset(make: MakeAdapter) -> None:
    adapter = make()
    for images in stream(adapter):
        adapter(images)
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
    given = make().adapted_model()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    wrapped = warmed_up(type(adapter))(model=given)
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
        for images in stream(adapter, 12, 12):
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
