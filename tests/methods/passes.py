"""Counting passes, and small models in known states, for the tests of the methods."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from testdg.methods import Adapter
from testdg.models import Preprocessing, VisionModel, load_model


@contextmanager
def counted(adapter: Adapter) -> Iterator[dict[str, int]]:
    """Count the images that go forward through each network of an adapter, by attribute name, and its backwards."""
    counts: dict[str, int] = {"backward": 0}
    plain = torch.autograd.grad

    def forward(owner: str) -> Any:
        def hook(_: Any, inputs: tuple[Any, ...]) -> None:
            counts[owner] = counts.get(owner, 0) + len(inputs[0])

        return hook

    def grad(*arguments: Any, **options: Any) -> Any:
        counts["backward"] += 1
        return plain(*arguments, **options)

    owners = [(name, child) for name, child in adapter.named_children() if isinstance(child, VisionModel)]
    handles = [child.register_forward_pre_hook(forward(name)) for name, child in owners]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", grad)
        yield counts
    for handle in handles:
        handle.remove()


def segformer(size: int = 32) -> VisionModel:
    """A SegFormer of a few thousand weights, for square images and five classes."""
    torch.manual_seed(0)
    config = transformers.SegformerConfig(
        num_labels=5,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
        sr_ratios=[1, 1, 1, 1],
    )
    network = transformers.SegformerForSemanticSegmentation(config)
    return load_model(network, preprocessing=Preprocessing((size, size), mean=(0.5,) * 3, std=(0.5,) * 3))


def confident(model: VisionModel, scale: float = 100.0) -> VisionModel:
    """The same model with a classifier whose predictions are surer."""
    with torch.no_grad():
        model.network.get_submodule(model.head).get_parameter("weight").mul_(scale)
    return model


def literal_loss(row: Tensor, loss: str) -> Tensor:
    """Entropy of the logits of one image, or COME's of the opinion that they are, by the formulas, in double."""
    row = row.double()
    if loss == "come":
        length = row.norm()
        evidence = (row / length * float(length.detach())).exp()
        masses = torch.cat([evidence, evidence.new_tensor([len(row)])]) / (evidence.sum() + len(row))
    else:
        masses = row.exp() / row.exp().sum()
    return -(masses * masses.log()).sum()


def segformer_b5() -> VisionModel:
    """SegFormer-B5 for Cityscapes without values, for counting."""
    config = transformers.SegformerConfig(
        num_labels=19,
        depths=[3, 6, 40, 3],
        hidden_sizes=[64, 128, 320, 512],
        num_attention_heads=[1, 2, 5, 8],
        decoder_hidden_size=768,
    )
    with torch.device("meta"):
        return load_model(transformers.SegformerForSemanticSegmentation(config))
