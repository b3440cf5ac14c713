"""EATA: entropy of reliable and new predictions, with a penalty on forgetting the source (Niu et al., ICML 2022)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.core.weights import Anchor
from testdg.methods import Presets, Search, option, register
from testdg.methods.parts.affine import OPTIMIZERS, AffineAdapter, ReliableSettings
from testdg.methods.parts.entropy import largest_entropy, masked_mean


@dataclass(frozen=True, kw_only=True)
class EataSettings(ReliableSettings):
    learning_rate: float = option(1e-3, "learning rate of the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd", "momentum"] = option("momentum", OPTIMIZERS)
    redundancy: float = option(0.05, "largest cosine similarity of a new prediction to the running mean", low=0)
    momentum: float = option(0.9, "momentum of the running mean prediction", low=0, high=1)
    fisher: bool = option(
        True, "penalise changes of parameters that matter for the source; without it the method is ETA"
    )
    fisher_weight: float = option(2000.0, "weight of the penalty on forgetting", low=0)
    source_images: int = option(2000, "source images for the Fisher information", low=1)
    as_released: bool = option(False, "square the gradient of a batch of source images instead of each image")


class Importance(nn.Module):
    """How much the source predictions depend on each parameter (the diagonal of their Fisher information)."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.anchor = Anchor(parameters)
        self.fisher: Tensor = nn.Buffer(torch.zeros_like(_flat(self.anchor.values())))

    def estimate(self, predict: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> None:
        """Average the squared gradient of the cross-entropy to the predicted classes over batches of images."""
        total, count = torch.zeros_like(self.fisher), 0
        for images in batches:
            logits = predict(images).float()
            loss = F.cross_entropy(logits, logits.argmax(1))
            with torch.autocast(loss.device.type, enabled=False):
                total += _flat(torch.autograd.grad(loss, self.anchor.parameters_)).square()
            count += 1
        self.fisher.copy_(total / max(count, 1))

    def penalty(self) -> Tensor:
        """Squared distance to the source values, each weighted by its importance."""
        moved = _flat(self.anchor.parameters_) - _flat(self.anchor.values())
        return (self.fisher * moved.square()).sum()


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


@register
class Eata(AffineAdapter):
    """Lower the entropy of predictions that are reliable and unlike those before, without forgetting the source."""

    name = "eata"
    title = "EATA"
    citation = "Niu et al., Efficient Test-Time Model Adaptation without Forgetting, ICML 2022"
    example_error = 21.5
    source_data = "the Fisher information of the normalisation layers (fisher=false goes without)"
    Settings = EataSettings
    settings: EataSettings
    search = Search(rates=(0.1, 0.3, 1, 3), values={"margin": (0.2, 0.4, 0.6)}, variants={"come": {"loss": "come"}})
    presets: ClassVar[Presets] = {
        "digits-c": {"optimizer": "adam", "redundancy": 0.4, "fisher_weight": 1.0, "as_released": True},
        "cifar10-c": {"optimizer": "adam", "redundancy": 0.4, "fisher_weight": 1.0, "as_released": True},
        "cifar100-c": {"optimizer": "adam", "redundancy": 0.1, "fisher_weight": 1.0, "as_released": True},
        "imagenet-c": {"as_released": True},
    }

    def build(self) -> None:
        """Make the optimiser, the running mean prediction (zero before the first) and the importance."""
        super().build()
        self.usual: Tensor = nn.Buffer(torch.zeros(self.model.classes, device=self.model.device))
        self.importance = Importance(self.learner.parameters_) if self.settings.fisher else None

    def source_images(self) -> int:
        return self.settings.source_images if self.settings.fisher else 0

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Estimate the Fisher information; labels are the model's own."""
        if self.importance is None:
            return

        def parts() -> Iterator[Tensor]:
            for images, _ in batches:
                yield from [images] if self.settings.as_released else torch.split(images, 1)

        self.importance.estimate(self.infer, parts())

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step down the weighted entropy of the chosen predictions."""
        s = self.settings
        logits: Tensor = self.model(images).logits
        losses, reliable = s.losses(logits)
        chosen = self._choose(logits.detach(), reliable)
        limit = largest_entropy(self.model.classes, s.margin)
        loss = masked_mean(losses * (limit - losses.detach()).exp(), chosen)
        penalty = self.importance.penalty() if self.importance is not None else loss.new_zeros(())
        self.learner.step(loss + s.fisher_weight * penalty, when=chosen.any())
        self.diagnostics.update(
            loss=loss.detach(), penalty=penalty.detach(), reliable=reliable.sum(), learnt_from=chosen.sum()
        )
        return logits

    def _choose(self, logits: Tensor, reliable: Tensor) -> Tensor:
        """Which of the reliable predictions are new; the mean of those joins the running mean."""
        s = self.settings
        p = logits.float().softmax(1)
        begun = self.usual.any()
        alike = F.cosine_similarity(self.usual[None], p).abs()
        chosen = reliable & ((alike < s.redundancy) | ~begun)
        mean = (p * chosen[:, None]).sum(0) / chosen.sum().clamp(min=1)
        joined = torch.where(begun, torch.lerp(mean, self.usual, s.momentum), mean)
        self.usual.copy_(torch.where(chosen.any(), joined, self.usual))
        return chosen
