"""SVDP: prompts on the few pixels that are most uncertain, on top of CoTTA (Yang et al., AAAI 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.core.weights import ema_update, frozen_copy, restore, weights_and_biases
from testdg.methods import Learner, Presets, Search, Settings, TeacherAdapter, option, register
from testdg.methods.parts.blocks import run_to_head
from testdg.methods.parts.views import choose_pixels, following_loss, multiscale_probabilities, sure_pixels
from testdg.models import Output, VisionModel


@dataclass(frozen=True, kw_only=True)
class SvdpSettings(Settings):
    prompts: int = option(518, "pixels with a prompt (published for 960 x 540: 518, a thousandth, or 51)", low=1)
    learning_rate: float = option(1e-4, "learning rate of all weights and biases", low=0)
    prompt_learning_rate: float = option(1e-4, "learning rate of the prompts", low=0)
    momentum: float = option(0.999, "momentum of the teacher's moving average", low=0, high=1)
    scale: float = option(0.1, "effect of the mean uncertainty on the momentum of the teacher's prompts", low=0)
    passes: int = option(10, "passes through the classifier under dropout, for the uncertainty", low=2)
    dropout: float = option(0.5, "share of dropped features in these passes", low=0, high=0.99)
    threshold: float = option(0.69, "confidence of the source above which a pixel is labelled from one view", low=0)
    restore: float = option(0.01, "share of the weights restored to the source after a batch", low=0, high=1)
    as_released: bool = option(False, "prompts start at random and never learn, as in the released code")


class SparsePrompts(nn.Module):
    """One colour offset for each rank of uncertainty, in units of the model's standard deviation."""

    def __init__(self, count: int, channels: int, device: torch.device) -> None:
        super().__init__()
        self.offsets = nn.Parameter(torch.zeros(count, channels, device=device))

    def forward(self, images: Tensor, uncertainty: Tensor, std: Tensor) -> Tensor:
        """Add the offsets to images at the pixels with the largest uncertainty (N, H, W), the last to the largest."""
        flat = uncertainty.flatten(1)
        count = min(len(self.offsets), flat.shape[1])
        places = flat.topk(count, 1).indices.flip(1)[:, None].expand(-1, images.shape[1], -1)
        offsets = (self.offsets[-count:] * std.flatten()).T.expand_as(places)
        return images + torch.zeros_like(images.flatten(2)).scatter(2, places, offsets).view_as(images)


@torch.no_grad()
def dropout_uncertainty(
    model: VisionModel, images: Tensor, passes: int, dropout: float, generator: Generator
) -> Tensor:
    """How much the prediction of each pixel varies under dropout before the classifier, (N, H, W).

    That is the sum over the classes of the variance of their probability. The network before runs once.
    """
    features = run_to_head(model, images).features
    head = model.head_layer
    probabilities = []
    for _ in range(passes):
        kept = torch.rand(features.shape, generator=generator, device=images.device) >= dropout
        scores = head(features * kept / (1 - dropout)).float()
        probabilities.append(F.interpolate(scores, images.shape[-2:], mode="bilinear", align_corners=False).softmax(1))
    return variation(torch.stack(probabilities))


def variation(probabilities: Tensor) -> Tensor:
    """Sum over the classes of the variance over the passes, (passes, N, C, ...) to (N, ...)."""
    return probabilities.var(0, correction=0).sum(1)


@register
class Svdp(TeacherAdapter):
    """Follow a teacher that looks at many views, with learnt offsets on the most uncertain pixels.

    Examples:
        >>> import testdg
        >>> from testdg.models.segformer import tiny_segformer
        >>> streets = testdg.load_benchmark("streets", images=2, domains=["fog"])
        >>> adapter = testdg.adapt(tiny_segformer(9), "svdp", prompts=15, preprocessing=testdg.Preprocessing())
        >>> for batch in streets.stream(batch_size=2):
        ...     tuple(adapter(batch.images).argmax(1).shape)  # a class for every pixel
        (2, 96, 160)
    """

    name = "svdp"
    title = "SVDP"
    citation = "Yang et al., Exploring Sparse Visual Prompt for Domain Adaptive Dense Prediction, AAAI 2024"
    tasks = ("segmentation",)
    differs_from_source = "an unsure pixel is a mean over views"
    Settings = SvdpSettings
    settings: SvdpSettings
    search = Search(rates=(0.01, 0.1, 0.3, 1), values={"restore": (0.001, 0.01, 0.1)})
    presets: ClassVar[Presets] = {
        "acdc": {"prompts": 51, "learning_rate": 3e-4, "prompt_learning_rate": 1e-2, "scale": 0.01, "as_released": True}
    }

    def build(self) -> None:
        s, model = self.settings, self.model
        self.teacher, self.anchor = frozen_copy(model), frozen_copy(model)
        self.prompts = SparsePrompts(s.prompts, model.channels, model.device)
        if s.as_released:
            torch.nn.init.normal_(self.prompts.offsets, generator=self.generator)
        self.teacher_prompts = frozen_copy(self.prompts)
        self.learner = Learner(
            [
                {"params": weights_and_biases(model), "lr": s.learning_rate},
                {"params": self.prompts.parameters(), "lr": s.prompt_learning_rate},
            ]
        )

    def step(self, images: Tensor) -> Tensor:
        """Place the prompts, predict with the teacher, follow it, move it, and put some weights back."""
        s = self.settings
        unsure = dropout_uncertainty(self.teacher, images, s.passes, s.dropout, self.generator)
        taught = self._label_pixels(images, unsure)
        with torch.set_grad_enabled(not s.as_released):
            decorated = self.prompts(images, unsure, self.model.std)
        loss = following_loss(self.model(decorated).logits, taught, "hard")
        self.learner.step(loss)
        ema_update(self.teacher, self.model, s.momentum)
        share = self.prompt_share(unsure)
        self.teacher_prompts.offsets.lerp_(self.prompts.offsets.detach(), share)
        weights = weights_and_biases(self.model)
        restore(weights, weights_and_biases(self.anchor), s.restore, self.generator)
        self.diagnostics.update(loss=loss.detach(), uncertainty=unsure.mean(), prompt_share=share)
        return taught

    def prompt_share(self, uncertainty: Tensor) -> Tensor:
        """How far the teacher's prompts go towards the student's: the farther, the less certain the images are."""
        share = 1 - self.settings.momentum + self.settings.scale * uncertainty.mean()
        return torch.where(share.isfinite(), share, 0.0).clamp(0, 1)

    @torch.no_grad()
    def _label_pixels(self, images: Tensor, unsure: Tensor) -> Tensor:
        """The teacher's log-probabilities: of one view where the source is sure of a pixel, else mean of fourteen.

        The uncertainty is an additional channel, so that it is resized and mirrored with each view.
        """

        def decorated(view: Tensor) -> Output:
            return self.teacher(self.teacher_prompts(view[:, :-1], view[:, -1], self.model.std))  # type: ignore[no-any-return]

        plain, mean = multiscale_probabilities(decorated, torch.cat([images, unsure[:, None]], 1))
        return choose_pixels(sure_pixels(self.anchor, images, self.settings.threshold), plain, mean)

    def infer(self, images: Tensor) -> Tensor:
        """Predict one view with the teacher and its prompts; dropout draws the same numbers every time."""
        s, generator = self.settings, torch.Generator(images.device).manual_seed(self.settings.seed)
        unsure = dropout_uncertainty(self.teacher, images, s.passes, s.dropout, generator)
        return super().infer(self.teacher_prompts(images, unsure, self.model.std))

    def why_not_exportable(self) -> str | None:
        return "it learns pixels, too" if bool(self.teacher_prompts.offsets.any()) else super().why_not_exportable()
