"""DPCore: the list of prompts, its worked numbers, and when a domain is known."""

from typing import Any

import pytest
import torch
from torch import Tensor

from support.errors import refused
from support.passes import counted
from testdg.methods.dpcore import Coreset, DPCore, distance
from testdg.methods.parts.prompted import moments
from testdg.models import VisionModel
from testdg.testing import stream

RAW, SOURCE = torch.tensor([[1.0, 0], [1, 1]]), torch.tensor([[0.5, 0.5], [1, 1]])
PROMPTED = torch.tensor([[0.5, 0.5], [0.9, 1.5]])


def two_elements() -> Coreset:
    coreset = Coreset(4, 2, torch.Size((1, 2)), torch.device("cpu"))
    coreset.add(torch.tensor([[0.0, 0], [1, 1]]), torch.tensor([[0.2, -0.1]]))
    coreset.add(torch.tensor([[3.0, 4], [1, 2]]), torch.tensor([[-0.4, 0.3]]))
    return coreset


def test_shares_and_mix_are_the_worked_numbers() -> None:
    coreset = two_elements()
    assert distance(RAW, coreset.statistics[:2]).tolist() == pytest.approx([1, 5.472136], abs=1e-6)
    shares = coreset.weigh(RAW, 3.0, 1.0)
    assert shares.tolist() == pytest.approx([0.816185, 0.183815], abs=1e-6)
    assert coreset.mix(shares)[0].tolist() == pytest.approx([0.089711, -0.026474], abs=1e-6)
    assert float(distance(RAW, SOURCE)) == pytest.approx(0.707107, abs=1e-6)
    assert float(distance(PROMPTED, SOURCE)) == pytest.approx(0.509902, abs=1e-6)


def test_a_known_batch_moves_elements_by_the_worked_numbers() -> None:
    coreset = two_elements()
    coreset.refine(coreset.weigh(RAW, 3.0, 1.0), PROMPTED, torch.tensor([[0.1, 0.0]]), 0.999)
    expected = torch.tensor([[[0.407684, 0.407684], [1, 1.407684]], [[2.540922, 3.357291], [1, 2]]])
    torch.testing.assert_close(coreset.statistics[:2], expected, atol=1e-6, rtol=0)
    prompts = torch.tensor([[[0.118463, -0.018463]], [[-0.308184, 0.244911]]])
    torch.testing.assert_close(coreset.prompts[:2], prompts, atol=1e-6, rtol=0)
    assert not coreset.prompts[2:].any()


def test_the_first_step_is_the_worked_number(vit: VisionModel) -> None:
    adapter = DPCore(vit)
    prompt = torch.full((1,), 0.05, requires_grad=True)
    adapter._move(prompt, (-0.3 * prompt).sum(), adapter._optimizer(prompt))
    assert float(prompt.detach()) == pytest.approx(0.14995, abs=1e-6)


def warm(model: VisionModel, **options: Any) -> DPCore:
    adapter = DPCore(model, **{"new_steps": 5, **options})
    adapter.warm_up(stream(adapter, 2, 16, seed=1))
    return adapter


def batches(adapter: DPCore, count: int = 2) -> list[Tensor]:
    return stream(adapter, count, 16)


def test_the_first_batch_is_a_new_domain_and_the_same_again_is_known(vit: VisionModel) -> None:
    adapter = warm(vit, new_steps=50, threshold=0.99)
    images = 0.2 * batches(adapter)[0]
    for forward, backward, count in ((51 * 16, 50, 1), (2 * 16, 1, 1)):
        with counted(adapter) as counts:
            adapter(images)
        assert (counts["model"], counts["backward"], adapter.coreset.count) == (forward, backward, count)
    assert not any(module._forward_pre_hooks for module in adapter.model.modules())


def test_what_is_added_are_the_features_without_a_prompt(vit: VisionModel) -> None:
    adapter = warm(vit)
    images = batches(adapter)[0]
    raw = moments(adapter.model(images).features)
    adapter(images)
    torch.testing.assert_close(adapter.coreset.statistics[0], raw)
    assert not torch.allclose(adapter.coreset.prompts[0], adapter.initial)


def test_the_prediction_of_a_known_domain_is_that_of_the_mix(vit: VisionModel) -> None:
    adapter = warm(vit, threshold=1e9)
    first, second = batches(adapter)
    adapter(first)
    expected = adapter.predict(second)
    torch.testing.assert_close(adapter(second), expected, atol=1e-5, rtol=1e-4)
    assert adapter.coreset.count == 1


@pytest.mark.parametrize("statistics", ["prompted", "raw"])
def test_elements_follow_features_with_or_without_the_prompt(vit: VisionModel, statistics: Any) -> None:
    adapter = warm(vit, threshold=1e9, rate=1.0, statistics=statistics)
    first, second = batches(adapter)
    adapter(first)
    prompt = adapter.coreset.prompts[0].clone()
    output = adapter.see(second, prompt) if statistics == "prompted" else adapter.model(second)
    adapter(second)
    torch.testing.assert_close(adapter.coreset.statistics[0, 0], output.features.mean(0), atol=1e-5, rtol=1e-4)


def test_nothing_is_ever_known_at_threshold_0_until_all_places_are_taken(vit: VisionModel) -> None:
    adapter = warm(vit, threshold=0.0, elements=3)
    counts = []
    for images in batches(adapter, 5):
        adapter(images)
        counts.append(adapter.coreset.count)
    assert counts == [1, 2, 3, 3, 3]
    adapter.reset()
    assert adapter.coreset.count == 0


def test_a_new_prompt_brings_features_nearer_and_no_weight_moves(vit: VisionModel) -> None:
    adapter = warm(vit, new_steps=50)
    before = {name: value.clone() for name, value in adapter.model.state_dict().items()}
    images = 0.2 * batches(adapter)[0]
    adapter(images)
    seen = adapter.see(images, adapter.coreset.prompts[0])
    assert float(adapter.loss(moments(seen.features))) < float(adapter.diagnostics["distance"])
    assert all(torch.equal(value, before[name]) for name, value in adapter.model.state_dict().items())


def test_unsure_source_images_are_left_out(vit: VisionModel) -> None:
    adapter = DPCore(vit, source_entropy=0.01)  # random weights: all are near ln 10
    with refused("few-source-images", "0.01", "0"):
        adapter.warm_up(stream(adapter, 2, 16))
