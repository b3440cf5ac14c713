"""A step that fails leaves no trace, and a state that does not fit is refused before anything changes."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.errors import refused
from testdg import Preprocessing, adapt, load_model
from testdg.core.stateful import Undo
from testdg.errors import UserError
from testdg.methods import Adapter, cotta
from testdg.models import TinyCNN, VisionModel
from testdg.testing import CHECKS, same_state, snapshot, stream
from testdg.testing.laws import Injected, failing


def fails(adapter: Adapter, images: Tensor, at: int) -> None:
    with pytest.raises(Injected), failing(adapter, at):
        adapter(images)


@contextmanager
def without(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Undo, name, lambda *_: True)
        yield


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("testdg", {}),
        ("tent", {"steps": 2}),
        ("sar", {}),
        ("rotta", {"update_every": 2}),
    ],
)
def test_the_check_finds_a_method_that_keeps_nothing(vit: VisionModel, method: str, settings: dict[str, Any]) -> None:
    def make(**more: Any) -> Adapter:
        return adapt(vit, method, **settings, **more)

    check = CHECKS["a step that fails leaves the state unchanged"]
    check(make)
    with without("keep"), pytest.raises((AssertionError, UserError), match=r"changed|writing"):
        check(make)


@pytest.mark.parametrize("method", ["testdg", "versatile", "cotta", "vdp"])
def test_the_check_finds_buffers_and_values_that_stay_changed(vit: VisionModel, method: str) -> None:
    check = CHECKS["a step that fails leaves the state unchanged"]
    with without("restore"), pytest.raises(AssertionError, match="changed"):
        check(lambda **more: adapt(vit, method, **more))


def test_a_first_step_that_fails_leaves_no_half_made_moments(vit: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, twin = adapt(vit, "tent"), adapt(vit, "tent")
    images = stream(adapter, 1)[0]
    plain, count = torch.zeros_like, 0

    def full(*given: Any, **options: Any) -> Tensor:
        nonlocal count
        count += 1
        if count == 4:
            raise torch.OutOfMemoryError("no memory")
        return plain(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros_like", full)
        with pytest.raises(torch.OutOfMemoryError):
            adapter(images)
    assert count == 4
    assert torch.equal(adapter(images), twin(images))
    assert same_state(adapter, twin) is None


def test_a_failure_while_weights_are_written_is_never_passed_over(
    vit: VisionModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = adapt(vit, "cotta")
    images = stream(adapter, 1)[0]

    def broken(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(cotta, "restore", broken)
        with pytest.raises(torch.OutOfMemoryError):
            adapter(images)
    for call in (lambda: adapter(images), lambda: adapter.save(tmp_path / "state")):
        with refused("torn-state"):
            call()
    adapter.reset()
    assert same_state(adapter, adapt(vit, "cotta")) is None
    adapter(images)


def test_ctrl_c_in_a_step_leaves_the_state_of_the_batch_before(vit: VisionModel) -> None:
    adapter = adapt(vit, "testdg")
    one, other = stream(adapter, 2)
    adapter(one)
    before = snapshot(adapter)
    handle = adapter.teacher.network.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        adapter(other)
    handle.remove()
    again = adapt(vit, "testdg")
    again.load_state(*before)
    assert same_state(adapter, again) is None


@pytest.mark.parametrize("method", ["testdg", "cotta", "versatile", "vida"])
def test_images_that_are_too_small_are_refused(method: str) -> None:
    torch.manual_seed(0)
    model = load_model(TinyCNN(width=8), preprocessing=Preprocessing(None, mean=(0.5,) * 3, std=(0.5,) * 3))
    adapter = adapt(model, method, **({"source_images": 0} if method == "vida" else {}))
    adapter(torch.rand(4, 3, 32, 32))
    before = snapshot(adapter)
    with refused("image-shape", "2 x 2", "TinyCNN"):
        adapter(torch.rand(4, 3, 2, 2))
    after = snapshot(adapter)
    assert before[1] == after[1]
    assert all(torch.equal(value, after[0][name]) for name, value in before[0].items())


# States


@pytest.mark.parametrize("method", ["tent", "sar", "testdg"])
def test_a_moment_of_one_number_is_refused(vit: VisionModel, method: str) -> None:
    adapter, other = adapt(vit, method), adapt(vit, method)
    adapter(stream(adapter, 1)[0])
    tensors, values = snapshot(adapter)
    name = next(name for name in tensors if ".moments." in name and tensors[name].ndim)
    with refused("other-state", name, "TinyViT"):
        other.load_state({**tensors, name: torch.zeros(())}, values)
    del tensors[name]
    with refused("other-state", name):
        other.load_state(tensors, values)


def test_values_that_do_not_fit_change_nothing(vit: VisionModel) -> None:
    adapter = adapt(vit, "testdg")
    adapter(stream(adapter, 1)[0])
    tensors, values = before = snapshot(adapter)
    for wrong in ({"batches": -1}, {"images": "6"}, {"queue._extra_state": {}}, {"detector._extra_state": 3}):
        with refused("other-state", "TinyViT"):
            adapter.load_state(tensors, {**values, **wrong})
    again = adapt(vit, "testdg")
    again.load_state(*before)
    assert same_state(adapter, again) is None


def test_another_model_or_preprocessing_is_refused(vit: VisionModel, cnn: VisionModel, tmp_path: Path) -> None:
    adapt(vit, "tent").save(tmp_path / "state")
    Adapter.load(tmp_path / "state", vit)
    resized = load_model(vit.network, preprocessing=Preprocessing((32, 32)))
    changed = copy.deepcopy(vit)
    with torch.no_grad():
        changed.network.get_parameter("head.bias").add_(1)
    for other in (resized, changed, cnn):
        with refused("other-model", type(other.network).__name__):
            Adapter.load(tmp_path / "state", other)


def test_a_method_that_has_seen_source_data_comes_back_around_the_model_that_was_given(
    vit: VisionModel, tmp_path: Path
) -> None:
    adapter = adapt(vit, "dept", source_images=12, prompts=3)
    images = stream(adapter, 2)
    adapter.warm_up((batch, torch.arange(6)) for batch in images)
    adapter(images[0])
    adapter.save(tmp_path / "state")
    again = Adapter.load(tmp_path / "state", vit)
    assert same_state(adapter, again) is None
    again.reset()
    adapter.reset()
    assert same_state(adapter, again) is None
