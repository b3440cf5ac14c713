"""Tensors that are no plain images: an adapter and a model say so, and the adapter stays as it was."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support.errors import refused
from testdg.core.adapter import Adapter
from testdg.methods import adapt
from testdg.models import TinyViT

KINDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sparse": (lambda images: images.to_sparse(), "sparse_coo"),
    "sparse rows": (lambda images: images[0, 0].to_sparse_csr(), "sparse_csr"),
    "packed": (lambda images: images.to_mkldnn(), "mkldnn"),
    "nested": (lambda images: torch.nested.nested_tensor(list(images)), "nested"),
    "jagged": (lambda images: torch.nested.nested_tensor(list(images), layout=torch.jagged), "nested"),
    "meta": (lambda images: images.to("meta"), "meta"),
}


@pytest.fixture(scope="module")
def adapter() -> Adapter:
    torch.manual_seed(0)
    return adapt(TinyViT(patch=8, width=16, depth=1, heads=2), "tent")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["adapt", "predict", "model"])
def test_tensors_that_are_not_dense_are_refused(kind: str, call: str, adapter: Adapter) -> None:
    make, value = KINDS[kind]
    images = make(torch.rand(2, 3, 32, 32))
    before = {name: value.clone() for name, value in adapter.tensors().items()}
    with refused("image-type", value):
        {"adapt": adapter, "predict": adapter.predict, "model": adapter.model}[call](images)
    assert all(torch.equal(value, before[name]) for name, value in adapter.tensors().items())
    assert adapter.batches == 0


def test_a_model_on_the_meta_device_takes_images_there(adapter: Adapter) -> None:
    model = adapter.adapted_model().to("meta")
    assert model(torch.empty(2, 3, 32, 32, device="meta")).logits.shape == (2, 10)
