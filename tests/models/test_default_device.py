"""Models and adapters do not depend on torch's default device; "meta" stands for a GPU that the machine lacks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from support.errors import refused
from support.models import KINDS, tiny_cnn, tiny_vit
from testdg import adapt, load_model
from testdg.methods import methods
from testdg.models import VisionModel
from testdg.models.resnet import CifarResNet
from testdg.models.segformer import random_segformer
from testdg.models.transfer import with_classes, with_size
from testdg.testing import stream
from testdg.testing.battery import source_batches

MODELS = {"vit": tiny_vit, "cnn": tiny_cnn}


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


def assert_same(make: Callable[[], VisionModel]) -> None:
    """A model that is made under another default device has the same weights on the CPU."""
    with default_device("meta"):
        found = make()
    tensors = [*found.named_parameters(), *found.named_buffers()]
    assert {value.device.type for _, value in tensors} == {"cpu"}
    assert found.fingerprint() == make().fingerprint()


@pytest.mark.parametrize("kind", MODELS)
def test_modules_and_folders_are_loaded_on_the_cpu(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind]()
    model.save(tmp_path)
    assert_same(lambda: load_model(tmp_path))
    assert_same(lambda: load_model(model.network, preprocessing=model.preprocessing))


@pytest.mark.parametrize("kind", KINDS)
def test_networks_of_transformers_are_loaded_on_the_cpu(
    kind: str, make_folder: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, _ = make_folder(kind)
    assert_same(lambda: load_model(folder))


def test_a_resnet_is_loaded_on_the_cpu(tmp_path: Path) -> None:
    save_file(CifarResNet(depth=8).state_dict(), tmp_path / "resnet8.safetensors")
    assert_same(lambda: load_model(tmp_path / "resnet8.safetensors"))


def test_new_classifiers_sizes_and_random_networks_are_made_on_the_cpu() -> None:
    model = tiny_vit()
    assert_same(lambda: with_classes(model, ["a", "b"]))
    assert_same(lambda: with_size(model, 16))
    assert_same(lambda: random_segformer("tiny", ["a", "b"]))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", methods())
def test_methods_adapt_as_under_any_default_device(method: str, kind: str) -> None:
    model, adapter_class = MODELS[kind](), methods()[method]
    if model.task not in adapter_class.tasks or adapter_class.refuses(model):
        pytest.skip(f"{method} is not for {kind}")

    def predicted() -> Tensor:
        adapter = adapter_class(model)
        if adapter.awaits_source:
            adapter.warm_up(source)
        logits = adapter(images)
        assert {value.device.type for value in adapter.tensors().values()} == {"cpu"}
        return torch.cat([logits, adapter.predict(images)])

    plain = adapter_class(model)
    source, images = source_batches(plain), stream(plain, 1)[0]
    expected = predicted()
    with default_device("meta"):
        found = predicted()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", MODELS)
def test_another_default_dtype_is_refused_before_and_during_a_stream(kind: str) -> None:
    model = MODELS[kind]()
    adapter = adapt(model, "tent")
    torch.set_default_dtype(torch.float64)
    try:
        with refused("default-dtype", torch.float64):
            load_model(model.network, preprocessing=model.preprocessing)
        with refused("default-dtype", torch.float64):
            adapter(torch.rand(4, 3, 32, 32))
    finally:
        torch.set_default_dtype(torch.float32)
    assert adapter(torch.rand(4, 3, 32, 32)).isfinite().all()
