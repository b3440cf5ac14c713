"""Continual-MAE: one batch by the book, what is trained, and what it costs."""

from typing import Any

import pytest
import torch
from map_cases import SEGMENTATION_CHECKS, any_size
from passes import counted, segformer
from torch import Tensor

from support.errors import refused
from testdg.methods.continual_mae import ContinualMAE, hog
from testdg.models import VisionModel
from testdg.testing import check_adapter, stream

BOOK: dict[str, Any] = {"views": 3, "learning_rate": 1e-3, "restore": 0.0, "as_released": True}


@pytest.fixture
def vit(vit: VisionModel) -> VisionModel:
    """A ViT whose last LayerNorm has a shape of its own: without one, the mean of a token is zero."""
    norm = vit.network.get_submodule("norm")
    with torch.no_grad():
        for number, parameter in enumerate(norm.parameters()):
            parameter.normal_(generator=torch.Generator().manual_seed(number))
    return vit


def by_the_book(adapter: ContinualMAE, images: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """The step as the released code orders it, token by token."""
    s, model = adapter.settings, adapter.model
    with torch.no_grad():
        means = []
        for _ in range(s.views):
            tokens = adapter.patches.run(model, adapter.augment(images, adapter.generator)).features
            means.append(tokens.flatten(2).mean(1).double())
        variance = torch.stack(means).var(0, unbiased=True)
        taught = model(images).logits
    count = int(s.mask * variance.shape[1])
    hidden = torch.zeros_like(variance, dtype=torch.bool)
    for row, values in zip(hidden, variance, strict=True):
        row[values.argsort(descending=True)[:count]] = True
    output = adapter.patches.run(model, images, hidden.view(-1, 1, *tokens.shape[-2:]), adapter.token)
    consistency = -(taught.softmax(1) * output.logits.log_softmax(1)).sum(1).mean()
    predicted = output.features.flatten(2).mT[hidden] @ adapter.decoder.weight[:, :, 0, 0].T + adapter.decoder.bias
    target = hog(images, tokens.shape[-2:]).flatten(2).mT[hidden]
    optimizer.zero_grad()
    (consistency + s.reconstruction_weight * (predicted - target).square().mean()).backward()
    optimizer.step()
    return taught


def test_three_batches_by_the_book(vit: VisionModel) -> None:
    adapter, other = ContinualMAE(vit, **BOOK), ContinualMAE(vit, **BOOK)
    optimizer = torch.optim.Adam(other.learner.parameters_, lr=1e-3)
    for images in stream(adapter, 3):
        torch.testing.assert_close(adapter(images), by_the_book(other, images, optimizer), rtol=1e-4, atol=1e-4)
    for (name, found), expected in zip(adapter.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=3e-4, msg=lambda text, n=name: f"{n}: {text}")


def test_as_released_the_choice_is_the_most_uncertain_and_else_it_is_drawn(vit: VisionModel) -> None:
    """The same views, the same uncertainty: only the released choice is the top half."""

    def chosen(as_released: bool) -> tuple[Tensor, Tensor]:
        adapter = ContinualMAE(vit, as_released=as_released)
        images = stream(adapter, 1, 12)[0]
        seen: list[Tensor] = []
        run = adapter.patches.run
        uncertainty = adapter.uncertainty(images)
        adapter.reset()

        def spy(model: VisionModel, view: Tensor, hidden: Tensor | None = None, token: Tensor | None = None) -> Any:
            seen.extend([] if hidden is None else [hidden])
            return run(model, view, hidden, token)

        object.__setattr__(adapter.patches, "run", spy)
        adapter(images)
        return uncertainty, seen[0][:, 0]

    for as_released in (True, False):
        uncertainty, hidden = chosen(as_released)
        assert hidden.sum((1, 2)).tolist() == [8] * 12
        least = torch.where(hidden, uncertainty, torch.inf).amin((1, 2))
        most = torch.where(hidden, -torch.inf, uncertainty).amax((1, 2))
        assert bool((least >= most).all()) is as_released
    drawn = (uncertainty * hidden).sum() / hidden.sum()
    assert float(drawn) > float(uncertainty.mean())


def test_without_a_mask_a_prediction_like_its_target_has_no_gradient(vit: VisionModel) -> None:
    adapter = ContinualMAE(vit, mask=0.0, reconstruction_weight=0.0)
    images = stream(adapter, 1)[0]
    output = adapter.patches.run(adapter.model, images, torch.zeros(6, 1, 4, 4, dtype=torch.bool), adapter.token)
    loss = -(adapter.predict(images).softmax(1) * output.logits.log_softmax(1)).sum(1).mean()
    gradients = adapter.learner.gradients(loss)
    assert all(float(gradient.abs().max()) < 1e-6 for gradient in gradients if gradient is not None)
    adapter(images)
    assert float(adapter.diagnostics["reconstruction"]) == 0
    assert float(adapter.token.detach().abs().max()) == 0


def test_weights_decoder_and_token_are_trained_and_positions_are_not(vit: VisionModel) -> None:
    adapter = ContinualMAE(vit, learning_rate=1e-2, restore=0.0)
    names = {name for name, _ in vit.named_parameters() if name.endswith((".weight", ".bias"))}
    extra = {"decoder.weight", "decoder.bias", "token"}
    assert adapter.trainable().keys() == {f"model.{name}" for name in names} | extra
    before = {name: value.detach().clone() for name, value in adapter.named_parameters()}
    for images in stream(adapter):
        adapter(images)
    moved = {name for name, value in adapter.named_parameters() if not torch.equal(value, before[name])}
    assert moved == adapter.trainable().keys()


def test_the_reconstruction_is_learnt(vit: VisionModel) -> None:
    adapter = ContinualMAE(vit, learning_rate=1e-2, restore=0.0)
    images = stream(adapter, 1)[0]
    losses = []
    for _ in range(25):
        adapter(images)
        losses.append(float(adapter.diagnostics["reconstruction"]))
    assert losses[-1] < 0.7 * losses[0]


def test_restore_puts_the_weights_back_but_not_decoder_and_token(vit: VisionModel) -> None:
    adapter = ContinualMAE(vit, learning_rate=1e-2, restore=1.0)
    images = stream(adapter, 1)[0]
    adapter(images)
    assert all(torch.equal(a, b) for a, b in zip(adapter.model.parameters(), vit.parameters(), strict=True))
    assert float(adapter.token.detach().abs().max()) > 0
    adapter.reset()
    assert float(adapter.token.detach().abs().max()) == 0


def test_the_decoder_of_a_vit_with_patches_of_16_has_108_outputs(vit: VisionModel) -> None:
    adapter = ContinualMAE(vit)
    assert adapter.decoder.weight.shape == (108, 32, 1, 1)
    assert float(adapter.decoder.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_a_batch_costs_twelve_passes_and_one_backward(vit: VisionModel) -> None:
    adapter = ContinualMAE(vit)
    images = stream(adapter, 1, 4)[0]
    with counted(adapter) as counts:
        adapter(images)
    assert counts == {"model": 12 * 4, "backward": 1}


def test_a_convolutional_network_is_refused(cnn: VisionModel) -> None:
    with refused("unsuitable-model", "continual_mae", "TinyCNN"):
        ContinualMAE(cnn)


@pytest.mark.parametrize("check", SEGMENTATION_CHECKS)
def test_segmentation_keeps_the_laws(check: str) -> None:
    model = segformer()
    assert check_adapter(lambda **settings: ContinualMAE(model, **{"views": 2, **settings}), only=check) == [check]


def test_maps_of_any_size_teach() -> None:
    adapter = ContinualMAE(any_size(), views=2, learning_rate=1e-3)
    images = torch.rand(2, 3, 72, 100, generator=torch.Generator().manual_seed(0))
    before = adapter.predict(images)
    assert adapter.uncertainty(images).shape == (2, 3, 4)
    assert before.shape == (2, 5, 72, 100)
    adapter(images)
    assert not torch.equal(adapter.predict(images), before)
    assert float(adapter.token.detach().abs().max()) > 0
