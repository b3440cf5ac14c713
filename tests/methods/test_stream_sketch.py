"""The first images of a stream in place of source images."""

from typing import Any

import pytest
import torch

from support.errors import refused
from testdg import adapt
from testdg.methods import Adapter
from testdg.models import VisionModel
from testdg.testing import stream

METHODS = ["align", "testdg_aligned"]


def make(model: VisionModel, method: str, **settings: Any) -> Adapter:
    return adapt(model, method, sketch="stream", source_images=64, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_predicts_as_it_is_until_enough_images_have_come(vit: VisionModel, method: str) -> None:
    adapter, batches = make(vit, method), []
    assert not adapter.awaits_source
    batches = stream(adapter, 20, 16)
    for images in batches[:4]:
        torch.testing.assert_close(adapter(images), vit(vit.prepare(images)).logits)
    assert adapter.model.alignment is not None
    assert float(adapter.model.alignment.sites[0].get_buffer("source_images")) == 64
    later = [(adapter(images) - vit(vit.prepare(images)).logits).abs().max() for images in batches[4:]]
    assert max(later) > 1e-3


def test_where_nothing_is_measured_nothing_is_collected(cnn: VisionModel) -> None:
    adapter, plain = make(cnn, "align"), adapt(cnn, "align")
    assert adapter.remarks() == []
    for images in stream(plain, 6, 16):
        assert torch.equal(adapter(images), plain(images))
        assert adapter.beginning.content() == []  # type: ignore[attr-defined]
    features = make(cnn, "testdg_aligned")
    assert len(features.remarks()) == 1
    features(images)
    assert len(features.beginning.content()) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METHODS)
def test_what_is_collected_is_a_part_of_the_state(vit: VisionModel, method: str, tmp_path: Any) -> None:
    whole, stopped = make(vit, method), make(vit, method)
    batches = stream(whole, 10, 20)
    for images in batches[:2]:
        whole(images), stopped(images)
    stopped.save(tmp_path / "state")
    again = Adapter.load(tmp_path / "state", vit)
    for images in batches[2:]:
        assert torch.equal(again(images), whole(images))


def test_a_bad_batch_is_not_collected(vit: VisionModel) -> None:
    adapter = make(vit, "align")
    with refused("image-range"):
        adapter(torch.full((4, 3, 32, 32), torch.nan))
    assert adapter.beginning.content() == []


def test_a_warm_up_of_another_model_is_refused(vit: VisionModel) -> None:
    one = adapt(vit, "align")
    one.warm_up(stream(one, 4, 16))
    other = adapt(vit, "align")
    with torch.no_grad():
        next(other.model.parameters()).add_(0.1)
    with refused("other-model"):
        other.load_warm(one.warm)
    same = adapt(vit, "align")
    same.load_warm(one.warm)
    images = stream(one, 1, 8)[0]
    assert torch.equal(same(images), one(images))
