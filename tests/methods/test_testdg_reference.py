"""One batch of TestDG, against the same batch written out from the paper with nothing but torch."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from testdg.data.augmentation import Augmentation
from testdg.methods.testdg import TestDG
from testdg.models import VisionModel
from testdg.testing import stream

SETTINGS: dict[str, Any] = {
    "gather": 1,
    "threshold": 10.0, "history": 1, "recent": 1, "significance": 0.0,
    "queue_length": 32, "prototypes": 5, "reference": "prototypes",
    "amplifier": True, "rank": 4,
    "embed_from": "features", "embedding_width": 8, "extractor_width": 16, "discriminator_width": 8,
    "discrimination_weight": 0.7, "invariance_weight": 0.6, "pairing": "sorted", "uncertainty_weighting": False,
    "invariance_pause": 0, "view": "same", "augmentation": 1.0, "flip": True, "label_temperature": 1.0,
    "symmetric": False, "confidence_weighting": False, "diversity_weight": 0.0,
    "momentum": 0.9, "change_momentum": None,
    "amplifier_momentum": 0.8, "predict": "teacher", "restore": 0.0, "optimizer": "sgd", "learning_rate": 0.1,
    "amplifier_learning_rate": 0.2, "extractor_learning_rate": 0.3, "prototype_update": False,
}  # fmt: skip


class Reference:
    """Copies of the parts of an adapter, and one batch of the paper with them."""

    def __init__(self, adapter: TestDG, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.model, self.teacher = copy.deepcopy(adapter.model), copy.deepcopy(adapter.teacher)
        self.amplifier, self.teacher_amplifier = (
            copy.deepcopy(part) for part in (adapter.amplifier, adapter.teacher_amplifier)
        )
        self.extractor, self.discriminator = copy.deepcopy(adapter.extractor), copy.deepcopy(adapter.discriminator)
        self.prototypes = adapter.prototypes.current.clone()
        self.generator = torch.Generator()
        self.generator.set_state(adapter.generator.get_state())
        self.networks().requires_grad_(True)

    def networks(self) -> nn.ModuleDict:
        names = ("model", "teacher", "amplifier", "teacher_amplifier", "extractor", "discriminator")
        return nn.ModuleDict({name: getattr(self, name) for name in names})

    def batch(self, images: Tensor) -> Tensor:
        """Predict, step 1, step 2, teacher; gives the prediction. Prototypes are not updated."""
        s = self.settings
        with torch.no_grad():
            prediction = self.run(self.teacher, self.teacher_amplifier, images)[0]
            reference = self.prototypes
            if not len(reference):
                view = Augmentation(1.0)(images, self.generator)
                reference = self.extractor(self.run(self.teacher, self.teacher_amplifier, view)[1])

        # Step 1: current embeddings are 1, those of the previous domain are 0
        real = self.discriminator(self.embed(images)).sigmoid().flatten()
        old = self.discriminator(reference).sigmoid().flatten()
        loss = -(real.log().sum() / len(real) + (1 - old).log().sum() / len(old)) / 2
        domain = [
            (p, s["extractor_learning_rate"]) for m in (self.extractor, self.discriminator) for p in m.parameters()
        ]
        domain += [(p, s["amplifier_learning_rate"]) for p in self.amplifier.parameters()]
        self.descend(s["discrimination_weight"] * loss, domain)

        # Step 2: follow the teacher, and come to the previous domain
        logits, features = self.run(self.model, self.amplifier, images)
        loss = self.self_training(logits, prediction)
        near, far = self.extractor(features).sort(0).values, reference.sort(0).values
        assert near.shape == far.shape
        weight = s["invariance_weight"]
        if s["uncertainty_weighting"]:
            weight = weight * (1 - prediction.softmax(1).max(1).values.mean())
        loss = loss + weight * (near - far).abs().sum(1).mean() / near.shape[1]
        self.descend(loss, [(p, s["learning_rate"]) for p in self.model.parameters()])

        self.average(self.teacher, self.model, s["momentum"])
        self.average(self.teacher_amplifier, self.amplifier, s["amplifier_momentum"])
        return prediction

    def self_training(self, logits: Tensor, taught: Tensor) -> Tensor:
        s, predicted, label = self.settings, logits.softmax(1), (taught / self.settings["label_temperature"]).softmax(1)
        each = -(label * predicted.log()).sum(1)
        if s["symmetric"]:
            each = (each - (predicted * label.log()).sum(1)) / 2
        if s["confidence_weighting"]:
            each = each * taught.softmax(1).max(1).values
        mean = predicted.mean(0)
        return each.mean() + s["diversity_weight"] * ((mean * mean.log()).sum() + math.log(len(mean)))

    def run(self, model: Any, amplifier: Any, images: Tensor) -> tuple[Tensor, Tensor]:
        logits, features = functional_call(model, amplifier.merged(model), (images,))
        return logits, features

    def embed(self, images: Tensor) -> Tensor:
        return self.extractor(self.run(self.model, self.amplifier, images)[1])  # type: ignore[no-any-return]

    @staticmethod
    def descend(loss: Tensor, parameters: list[tuple[nn.Parameter, float]]) -> None:
        """The first step of Nesterov SGD with momentum 0.9."""
        gradients = torch.autograd.grad(loss, [p for p, _ in parameters])
        with torch.no_grad():
            for (parameter, rate), gradient in zip(parameters, gradients, strict=True):
                parameter -= rate * 1.9 * gradient

    @staticmethod
    @torch.no_grad()
    def average(average: Any, module: Any, momentum: float) -> None:
        for mine, other in zip(average.parameters(), module.parameters(), strict=True):
            mine.copy_(momentum * mine + (1 - momentum) * other)


def stirred(model: VisionModel, settings: dict[str, Any], images: Tensor, domain: str) -> TestDG:
    """An adapter whose amplifier is not zero and whose teacher is not its student, before its first batch."""
    adapter = TestDG(model, **settings)
    generator = torch.Generator().manual_seed(1)
    assert adapter.amplifier is not None
    assert adapter.teacher_amplifier is not None
    with torch.no_grad():
        for part in (adapter.amplifier, adapter.teacher_amplifier, adapter.teacher):
            for parameter in part.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    if domain == "later":
        prototypes = torch.randn(len(images), settings["embedding_width"], generator=generator)
        adapter.prototypes.add(prototypes, torch.arange(len(images)), 0.5)
    return adapter


@pytest.mark.parametrize("domain", ["first", "later"])
@pytest.mark.parametrize("kind", ["vit", "cnn"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"symmetric": True},
        {"label_temperature": 0.5},
        {"confidence_weighting": True},
        {"diversity_weight": 0.8},
        {"uncertainty_weighting": True},
    ],
    ids=str,
)
def test_a_batch_is_what_the_paper_says(
    kind: str, domain: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model: VisionModel = request.getfixturevalue(kind)
    settings = {**SETTINGS, **options}
    images = stream(TestDG(model, **settings), 1, 5)[0]
    adapter = stirred(model, settings, images, domain)
    reference = Reference(adapter, settings)
    before = {name: value.clone() for name, value in adapter.named_parameters()}
    torch.testing.assert_close(adapter(images), reference.batch(images))
    expected = dict(reference.networks().named_parameters())
    now = {name: value for name, value in adapter.named_parameters() if name in expected}
    assert now.keys() == expected.keys()
    for name, value in now.items():
        learnt, difference = ((value - other).abs().max() for other in (before[name], expected[name].detach()))
        assert difference < 1e-3 * learnt + 1e-7, f"{name} learnt {learnt:g} and differs by {difference:g}"
    with torch.no_grad():
        torch.testing.assert_close(adapter.queue.content()[0], reference.embed(images), rtol=1e-4, atol=1e-6)
