"""VDP: prompts in the image while the network stays frozen (Gan et al., AAAI 2023). A reconstruction."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from testdg.data.augmentation import Augmentation
from testdg.methods.adapter import Adapter
from testdg.methods.parts.learner import Learner
from testdg.methods.parts.teacher import ema_update, frozen_copy
from testdg.methods.parts.views import following_loss
from testdg.methods.registry import register
from testdg.methods.search import Search
from testdg.methods.settings import Settings, option
from testdg.methods.vdp.homeostasis import Homeostasis
from testdg.methods.vdp.jumps import JumpDetector
from testdg.methods.vdp.prompts import Prompts


@dataclass(frozen=True, kw_only=True)
class VDPSettings(Settings):
    """Settings of VDP."""

    prompt_size: int = option(17, "side of each of the two prompts, in pixels", low=1)
    flip: bool = option(True, "mirror every other augmented image; not for digits or text")
    loss: Literal["soft", "hard"] = option("soft", "cross-entropy with the teacher's soft or its hard label")
    learning_rate: float = option(1e-2, "of the prompts", low=0)
    momentum: float = option(0.999, "of the teacher's prompts", low=0, high=1)
    threshold: float = option(0.1, "jump of the mean confidence that means a new domain", low=0)
    history: int = option(1, "batches before it that a jump is measured against", low=1)
    recent: int = option(1, "newest batches that are averaged", low=1)
    significance: float = option(0.0, "standard errors of the confidence that a jump must exceed too", low=0)
    homeostasis: float = option(1.0, "weight of the penalty on the domain-agnostic prompt", low=0)
    damping: float = option(0.1, "keeps the importance of a value that did not move finite", low=1e-12)


@register
class VDP(Adapter):
    """Learn two patches of pixels that follow their own moving average; the network never changes.

    Examples:
        >>> from testdg.evaluation import run
        >>> result = run("digits-c", "vdp", images=100, domains=["snow", "frost"])
        >>> print(f"error {result.mean_score:.1f} %")
        error 22.5 %
    """

    name = "vdp"
    title = "VDP"
    citation = "Gan et al., Decorate the Newcomers: Visual Domain Prompt for Continual Test Time Adaptation, AAAI 2023"
    tasks = ("classification", "segmentation")
    needs = "images at least as large as a prompt"
    reconstruction = True
    Settings = VDPSettings
    settings: VDPSettings
    search = Search(rates=(0.01, 0.1, 1, 10), values={"homeostasis": (0.1, 1.0, 10.0)})
    presets: ClassVar[dict[str, dict[str, Any]]] = {
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
        """Make student and teacher prompts, the memory of what mattered, and the optimiser."""
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
        """Predict images decorated with the teacher's prompts."""
        return self.model(self.teacher(images)).logits  # type: ignore[no-any-return]

    def beyond_weights(self) -> str | None:
        """The prompt is added to the images."""
        prompted = any(bool(prompt.any()) for prompt in self.teacher.parameters())
        return "it learns pixels, not weights" if prompted else super().beyond_weights()
