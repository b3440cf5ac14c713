"""VDP: prompts in the image while the network stays frozen (Gan et al., AAAI 2023). A reconstruction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.core.weights import ema_update, frozen_copy
from testdg.data.augmentation import Augmentation
from testdg.errors import UserError
from testdg.methods import Adapter, Learner, PlainState, Presets, Search, Settings, option, register
from testdg.methods.parts.views import following_loss


@dataclass(frozen=True, kw_only=True)
class VDPSettings(Settings):
    prompt_size: int = option(17, "side of each of the two prompts, in pixels", low=1)
    flip: bool = option(True, "mirror every other augmented image; not for digits or text")
    loss: Literal["soft", "hard"] = option("soft", "cross-entropy with the teacher's soft or its hard label")
    learning_rate: float = option(1e-2, "learning rate of the prompts", low=0)
    momentum: float = option(0.999, "momentum of the teacher's prompts", low=0, high=1)
    threshold: float = option(0.1, "jump of the mean confidence that means a new domain", low=0)
    history: int = option(1, "previous batches that a jump is measured against", low=1)
    recent: int = option(1, "newest batches that are averaged", low=1)
    significance: float = option(0.0, "standard errors of the confidence that a jump must also exceed", low=0)
    homeostasis: float = option(1.0, "weight of the penalty on the domain-agnostic prompt", low=0)
    damping: float = option(0.1, "keeps the importance of an unchanged value finite", low=1e-12)


class Prompts(nn.Module):
    """Two square patches: the domain-agnostic one at the top left, the domain-specific one at the bottom right."""

    def __init__(self, channels: int, size: int, device: torch.device) -> None:
        super().__init__()
        self.agnostic = nn.Parameter(torch.zeros(channels, size, size, device=device))
        self.specific = nn.Parameter(torch.zeros(channels, size, size, device=device))

    def forward(self, images: Tensor) -> Tensor:
        """Decorate images of any size that holds a patch; pixels may leave [0, 1], so that gradients stay alive."""
        height, width = images.shape[-2:]
        size = self.agnostic.shape[-1]
        if size > min(height, width):
            limit = f"at most the side of an image, {min(height, width)}"
            raise UserError(f"prompt_size must be {limit}; got {size}", code="setting-range")
        down, across = height - size, width - size
        return images + F.pad(self.agnostic, (0, across, 0, down)) + F.pad(self.specific, (across, 0, down, 0))


class JumpDetector(PlainState):
    """Detect a new domain by a jump of the confidence.

    A batch is compared with each of the `history` before it. With `significance` above zero, the mean of the `recent`
    batches is compared with the mean of the `history` before them, and the gap must also be that many standard errors
    wide, so that a small batch, whose confidence is noisy, does not pass for a new domain.
    """

    plain = ("past",)

    def __init__(self, threshold: float, history: int = 1, recent: int = 1, significance: float = 0.0) -> None:
        super().__init__()
        self.threshold, self.history, self.recent, self.significance = threshold, history, recent, significance
        self.past: list[float] = []

    def update(self, confidence: float) -> bool:
        """Take the mean confidence of a batch; True where a new domain begins."""
        past = [*self.past, confidence][-self.history - self.recent :]
        old, new = past[: -self.recent], past[-self.recent :]
        far = any(abs(_mean(new) - value) > self.threshold for value in old)
        changed = self._significant(old, new) if self.significance else far
        self.past = past[-self.recent :] if changed else past
        return changed

    def _significant(self, old: Sequence[float], new: Sequence[float]) -> bool:
        if len(old) < min(3, self.history):  # no spread to speak of yet
            return False
        squares = sum((value - _mean(part)) ** 2 for part in (old, new) for value in part)
        variance = squares / max(1, len(old) + len(new) - 2)
        error = math.sqrt(variance * (1 / len(old) + 1 / len(new)))
        return abs(_mean(old) - _mean(new)) > max(self.threshold, self.significance * error)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class Homeostasis(nn.Module):
    """Hold back what earlier domains depended on (synaptic intelligence, Zenke et al., ICML 2017).

    That is how much each value of a tensor mattered in finished domains, and where it stood at the end of the last one.
    """

    def __init__(self, values: Tensor, damping: float) -> None:
        super().__init__()
        self.damping = damping
        self.importance: Tensor = nn.Buffer(torch.zeros_like(values, requires_grad=False))
        self.path: Tensor = nn.Buffer(torch.zeros_like(values, requires_grad=False))
        self.anchor: Tensor = nn.Buffer(values.detach().clone())

    def penalty(self, values: Tensor) -> Tensor:
        """Sum of importance times squared distance from the end of the last domain."""
        return (self.importance * (values - self.anchor).square()).sum()

    def gradient(self, values: Tensor) -> Tensor:
        return 2 * self.importance * (values - self.anchor)

    def travel(self, gradient: Tensor, step: Tensor) -> None:
        """Add what a step contributed to the fall of the loss; a step that was left out contributes nothing."""
        self.path -= (gradient * step).nan_to_num(0.0, 0.0, 0.0)

    def close(self, values: Tensor) -> None:
        """End a domain: its share of the importance is what was gained on the way, per squared distance."""
        self.importance += self.path.clamp(min=0) / ((values - self.anchor).square() + self.damping)
        self.anchor.copy_(values)
        self.path.zero_()


@register
class VDP(Adapter):
    """Learn two patches of pixels that follow their own moving average; the network never changes."""

    name = "vdp"
    title = "VDP"
    citation = "Gan et al., Decorate the Newcomers: Visual Domain Prompt for Continual Test Time Adaptation, AAAI 2023"
    example_error = 22.5
    tasks = ("classification", "segmentation")
    needs = "images at least as large as a prompt"
    reconstruction = True
    Settings = VDPSettings
    settings: VDPSettings
    search = Search(rates=(0.01, 0.1, 1, 10), values={"homeostasis": (0.1, 1.0, 10.0)})
    presets: ClassVar[Presets] = {
        "digits-c": {"momentum": 0.99, "flip": False},
        "cifar10-c": {},
        "cifar100-c": {},
        "imagenet-c": {"threshold": 0.05},
        "acdc": {
            "prompt_size": 20,
            "loss": "hard",
            "learning_rate": 1e-4,
            "threshold": 0.05,
            "history": 10,
            "recent": 3,
            "significance": 4.0,
        },
    }
    checks_input_late = True

    def build(self) -> None:
        s, model = self.settings, self.model
        self.prompts = Prompts(model.channels, s.prompt_size, model.device)
        if model.preprocessing.input_size is not None:
            self.prompts(torch.zeros(1, model.channels, *model.preprocessing.input_size, device=model.device))
        self.teacher = frozen_copy(self.prompts)
        self.memory = Homeostasis(self.prompts.agnostic, s.damping)
        self.detector = JumpDetector(s.threshold, history=s.history, recent=s.recent, significance=s.significance)
        self.augment = Augmentation(flip=s.flip, move=model.task == "classification")
        self.learner = Learner([{"params": [self.prompts.agnostic, self.prompts.specific], "lr": s.learning_rate}])

    def step(self, images: Tensor) -> Tensor:
        """Predict with the teacher's prompts; the student's follow it on another view."""
        with torch.no_grad():
            taught = self.infer(images)
        (confidence,) = self.to_host(taught.float().softmax(1).amax(1).mean())
        changed = self.detector.update(confidence)
        if changed:
            self.memory.close(self.prompts.agnostic.detach())
        view = self.augment(images, self.generator)
        self._learn(following_loss(self.model(self.prompts(view)).logits, taught, self.settings.loss))
        ema_update(self.teacher, self.prompts, self.settings.momentum)
        self.diagnostics.update(confidence=confidence, change=changed)
        return taught

    def _learn(self, loss: Tensor) -> None:
        """Step down the loss and the penalty; only the loss counts for what the agnostic prompt contributes."""
        weight, values = self.settings.homeostasis, self.prompts.agnostic.detach()
        before = values.clone()
        agnostic, specific = self.learner.gradients(loss)
        assert agnostic is not None
        penalty = weight * self.memory.penalty(values)
        self.learner.move([agnostic + weight * self.memory.gradient(values), specific], loss + penalty)
        self.memory.travel(agnostic, values - before)
        self.diagnostics.update(loss=loss.detach(), penalty=penalty)

    def infer(self, images: Tensor) -> Tensor:
        return self.model(self.teacher(images)).logits  # type: ignore[no-any-return]

    def why_not_exportable(self) -> str | None:
        prompted = any(bool(prompt.any()) for prompt in self.teacher.parameters())
        return "it learns pixels, not weights" if prompted else super().why_not_exportable()
