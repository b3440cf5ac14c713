"""CoTTA: the teacher's views, the restored weights, and what a batch costs."""

import pytest
import torch

from support.literal import literal_views
from support.networks import confident, segformer
from testdg.core.weights import weights_and_biases
from testdg.methods.cotta import Cotta
from testdg.methods.parts.views import multiscale_probabilities
from testdg.models import VisionModel
from testdg.testing import stream

SEVEN = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_a_share_of_the_weights_is_the_source_bit_for_bit(vit: VisionModel, share: float) -> None:
    adapter = Cotta(vit, learning_rate=1e-3, restore=share, threshold=1.0, views=2)
    for images in stream(adapter, 2):
        adapter(images)
    pairs = list(zip(weights_and_biases(adapter.model), weights_and_biases(vit), strict=True))
    same = torch.cat([(now == old).flatten() for now, old in pairs])
    assert float(same.float().mean()) == pytest.approx(share, abs=0.01)  # what was restored before has moved on
    fixed = {name for name, _ in vit.named_parameters()} - {n.removeprefix("model.") for n in adapter.trainable()}
    assert fixed == {"network.token", "network.position"}


def test_the_threshold_is_on_the_mean_confidence_of_the_source(vit: VisionModel) -> None:
    images = stream(Cotta(vit), 1)[0]
    with torch.no_grad():
        confidence = float(vit(images).logits.softmax(1).amax(1).mean())
    for threshold, augmented in ((confidence + 1e-3, True), (confidence - 1e-3, False)):
        adapter = Cotta(vit, threshold=threshold)
        adapter(images)
        assert adapter.diagnostics["augmented"] is augmented
        assert adapter.diagnostics["confidence"] == pytest.approx(confidence, rel=1e-5)


def test_a_sure_batch_is_predicted_by_the_teacher_and_teaches_nothing_at_first(vit: VisionModel) -> None:
    adapter = Cotta(vit, threshold=0.0, learning_rate=0.1, restore=0.0, optimizer="sgd")
    images = stream(adapter, 1)[0]
    with torch.no_grad():
        source = vit(images).logits
    torch.testing.assert_close(adapter(images), source)
    # teacher and student are equal, so the cross-entropy is at its minimum
    pairs = zip(adapter.model.parameters(), vit.parameters(), strict=True)
    assert max(float((now - old).detach().abs().max()) for now, old in pairs) < 1e-6


def test_the_prediction_is_the_mean_of_the_logits_of_the_views(vit: VisionModel) -> None:
    adapter = Cotta(vit, threshold=1.0, views=3)
    images = stream(adapter, 1)[0]
    generator = torch.Generator().manual_seed(0)
    views = [adapter.augment(images, generator) for _ in range(3)]
    with torch.no_grad():
        expected = sum(vit(view).logits.double() for view in views) / 3
    torch.testing.assert_close(adapter(images).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["vit", "cnn"])
def test_views_in_one_pass_or_in_many_are_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    one, many = (Cotta(model, views=5, views_at_once=n) for n in (1, 4))
    for images in stream(one, 1):
        torch.testing.assert_close(one(images), many(images), rtol=1e-5, atol=1e-6)


def test_the_order_is_step_average_restore(vit: VisionModel) -> None:
    adapter = Cotta(vit, learning_rate=1e-2, momentum=0.9, restore=1.0)
    adapter(stream(adapter, 1)[0])
    # every weight is back at the source, but the teacher followed the student before that
    weights = list(zip(weights_and_biases(adapter.model), weights_and_biases(vit), strict=True))
    assert all(torch.equal(now, old) for now, old in weights)
    steps = torch.cat(
        [((a - b) / 1e-2).flatten() for a, b in zip(adapter.teacher.parameters(), vit.parameters(), strict=True)]
    )
    largest = float(steps.detach().abs().max())
    assert largest == pytest.approx(0.1, rel=1e-2)  # Adam's first step is the rate, and the teacher takes a tenth


# Segmentation


def test_pixels_take_one_view_where_the_source_is_sure_and_the_mean_of_fourteen_elsewhere() -> None:
    model = confident(segformer(), 3000.0)
    adapter = Cotta(model, threshold=0.5, batch_statistics=False)
    images = stream(adapter, 1, 2)[0]
    prediction = adapter(images)
    with torch.no_grad():
        plain = model(images).logits.softmax(1)
        sure = plain.amax(1) > 0.5
        mean = literal_views(model, images, SEVEN)
    assert 0 < float(sure.float().mean()) < 1
    expected = torch.where(sure, plain.argmax(1), mean.argmax(1))
    assert float((prediction.argmax(1) == expected).float().mean()) > 0.999
    assert float(adapter.diagnostics["augmented"]) == pytest.approx(float((~sure).float().mean()), abs=1e-6)


def test_multiscale_probabilities_against_a_literal_loop() -> None:
    model = confident(segformer(), 3000.0)
    images = stream(Cotta(model), 1, 2)[0]
    plain, mean = multiscale_probabilities(model, images)
    with torch.no_grad():
        torch.testing.assert_close(plain, model(images).logits.softmax(1))
        torch.testing.assert_close(mean, literal_views(model, images, SEVEN), rtol=1e-4, atol=1e-6)
