"""Continual-MAE: hide uncertain tokens, reconstruct and predict them (Liu et al., CVPR 2024)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.core.weights import Anchor, restore, weights_and_biases
from testdg.data.augmentation import Augmentation
from testdg.methods import Adapter, Learner, Presets, Search, Settings, option, register
from testdg.methods.parts.blocks import hooked, pass_empty_image
from testdg.methods.parts.entropy import masked_mean
from testdg.methods.parts.views import following_loss, over_views
from testdg.models import Output, VisionModel

BINS = 9
CELLS = 2
"""Cells of a patch along each side."""
MOST_OTHER_TOKENS = 16
"""Class and register tokens that may stand before those of the patches."""


@dataclass(frozen=True, kw_only=True)
class ContinualMAESettings(Settings):
    mask: float = option(0.5, "share of hidden tokens", low=0, high=1)
    reconstruction_weight: float = option(0.5, "weight of the reconstruction", low=0)
    views: int = option(10, "augmented views whose disagreement is the uncertainty of a token", low=2)
    views_at_once: int = option(10, "views that share one pass; fewer need less memory", low=1)
    flip: bool = option(True, "mirror every other view; not for digits or text")
    move: bool = option(True, "also rotate, shift, scale and mirror the views, though tokens are compared by position")
    learning_rate: float = option(1e-5, "learning rate of weights, decoder and mask token", low=0)
    restore: float = option(0.01, "share of the weights restored to the source after a batch", low=0, high=1)
    as_released: bool = option(False, "hide the most uncertain tokens instead of sampling by uncertainty")


@torch.no_grad()
def hog(images: Tensor, grid: Sequence[int]) -> Tensor:
    """Histograms of images in [0, 1], (N, C, H, W), for a grid of patches: (N, C 9 4, h, w).

    Per channel, the Sobel gradient of each pixel falls into one of nine bins by its direction, where opposite
    directions are the same; magnitudes are averaged in 2 x 2 cells of a patch and each cell's nine numbers have
    length one. The order is channel, bin, row and column of the cell.
    """
    across, down = sobel(images.float())
    magnitude = (across.square() + down.square()).sqrt()
    bins = (torch.atan2(across, down) * (BINS / math.pi)).floor() % BINS
    cells = (CELLS * grid[0], CELLS * grid[1])
    magnitudes = [F.adaptive_avg_pool2d(magnitude * (bins == number), cells) for number in range(BINS)]
    histograms = F.normalize(torch.stack(magnitudes, 2), dim=2)  # (N, C, 9, 2 h, 2 w)
    return F.pixel_unshuffle(histograms.flatten(1, 2), CELLS)


def sobel(images: Tensor) -> tuple[Tensor, Tensor]:
    """Left minus right and top minus bottom, each smoothed along the other axis; the border is reflected."""
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    column = padded[..., :-2, :] + 2 * padded[..., 1:-1, :] + padded[..., 2:, :]
    row = padded[..., :-2] + 2 * padded[..., 1:-1] + padded[..., 2:]
    return column[..., :-2] - column[..., 2:], row[..., :-2, :] - row[..., 2:, :]


@dataclass(frozen=True)
class Patches:
    """Where the tokens of image patches enter and leave a model.

    They enter at a convolution. In a classifier they leave at the last module that gives one vector per token; a
    LayerNorm that the model applies to less than all tokens afterwards is then applied to them too. In a
    segmentation model the features are the map of what leaves.
    """

    entry: str
    entering: int
    """Width of a token as it enters."""
    leaving: int
    """Width of a token as it leaves."""
    exit: str | None = None
    norm: str | None = None

    def run(
        self, model: VisionModel, images: Tensor, hidden: Tensor | None = None, token: Tensor | None = None
    ) -> Output:
        """Logits, and tokens as they leave as a map (N, D, h, w); where `hidden` is True, `token` enters instead."""
        seen: dict[str, Tensor] = {}

        def enter(_: nn.Module, __: object, output: Tensor) -> Tensor:
            seen["entered"] = output
            return output if hidden is None or token is None else replace(output, hidden, token)

        def leave(_: nn.Module, __: object, output: Tensor) -> None:
            seen["left"] = output

        hooks = {self.entry: enter} if self.exit is None else {self.entry: enter, self.exit: leave}
        with hooked(*((model.get_submodule(name), hook) for name, hook in hooks.items())):
            output: Output = model(images)
        if self.exit is None:
            return output
        height, width = seen["entered"].shape[-2:]
        tokens = seen["left"][:, -height * width :]  # class and register tokens come first
        tokens = tokens if self.norm is None else model.get_submodule(self.norm)(tokens)
        return Output(output.logits, tokens.mT.reshape(len(tokens), -1, height, width))


def replace(tokens: Tensor, hidden: Tensor, token: Tensor) -> Tensor:
    """Put one token in the place of others, (N, D, h, w); `hidden` is (N, 1, ...), of the same or a coarser grid."""
    hidden = F.interpolate(hidden.float(), tokens.shape[-2:], mode="nearest") > 0
    return torch.where(hidden, token.to(tokens.dtype).view(1, -1, 1, 1), tokens)


def choose_hidden(uncertainty: Tensor, share: float, generator: Generator | None = None) -> Tensor:
    """Choose a share of the tokens of each image, (N, h, w) to flags (N, 1, h, w): the most uncertain ones.

    With a generator they are drawn without replacement, with probabilities in proportion to their uncertainty.
    """
    scores = uncertainty.flatten(1)
    if generator is not None:
        scores = scores / torch.empty_like(scores).exponential_(generator=generator)
    chosen = scores.topk(int(share * scores.shape[1]), 1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True).view_as(uncertainty)[:, None]


def find_patches(model: VisionModel) -> Patches | None:
    """Find where patch tokens enter and leave, by structure; None where a model has no such tokens."""
    convolutions = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    if model.task == "segmentation":
        name, layer = next(iter(convolutions.items()))
        return Patches(name, layer.out_channels, model.feature_size)
    entries = [name for name, layer in convolutions.items() if layer.stride == layer.kernel_size != (1, 1)]
    outputs = _outputs(model)
    names = list(outputs)
    lists = [name for name in names if outputs[name].ndim == 3]
    if not entries or not lists:
        return None
    entered, left = outputs[entries[0]], outputs[lists[-1]]
    if not 0 <= left.shape[1] - entered[0, 0].numel() <= MOST_OTHER_TOKENS:
        return None
    after = names[names.index(lists[-1]) + 1 :]
    norms = [name for name in after if isinstance(model.get_submodule(name), nn.LayerNorm)]
    return Patches(entries[0], entered.shape[1], left.shape[2], lists[-1], norms[0] if norms else None)


def _outputs(model: VisionModel) -> dict[str, Tensor]:
    """Output of each module for a black image, in the order in which they finish."""
    names = {module: name for name, module in model.named_modules()}
    outputs: dict[str, Tensor] = {}

    def note(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor):
            outputs.pop(names[module], None)
            outputs[names[module]] = output

    with hooked(*((module, note) for module in names)):
        pass_empty_image(model)
    return outputs


@register
class ContinualMAE(Adapter):
    """Hide the tokens on which augmented views disagree; learn to predict and to reconstruct without them."""

    name = "continual_mae"
    title = "Continual-MAE"
    citation = (
        "Liu et al., Continual-MAE: Adaptive Distribution Masked Autoencoders for Continual Test-Time Adaptation, "
        "CVPR 2024"
    )
    example_error = 21.5
    tasks = ("classification", "segmentation")
    reconstruction = ("segmentation",)
    needs = "patch tokens"
    Settings = ContinualMAESettings
    settings: ContinualMAESettings
    search = Search(rates=(0.01, 0.1, 0.3, 1), values={"mask": (0.25, 0.5, 0.75)})
    presets: ClassVar[Presets] = {
        "digits-c": {"as_released": True, "flip": False},
        "cifar10-c": {"as_released": True},
        "cifar100-c": {"as_released": True},
        "imagenet-c": {"as_released": True, "learning_rate": 1e-6, "restore": 0.001},
        "acdc": {"as_released": True, "learning_rate": 1e-4},
    }
    patches: Patches

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        return None if find_patches(model) else "it has no patch tokens that could be hidden (a vision transformer has)"

    def build(self) -> None:
        """Make the mask token, the decoder and the optimiser; class token and position embedding stay as they are."""
        s, device = self.settings, self.model.device
        self.patches = find_patches(self.model)  # type: ignore[assignment]  # refuses() has looked
        self.token = nn.Parameter(torch.zeros(self.patches.entering, device=device))
        outputs = self.model.channels * BINS * CELLS**2
        self.decoder = nn.utils.skip_init(nn.Conv2d, self.patches.leaving, outputs, 1, device=device)  # type: ignore[no-untyped-call]
        nn.init.trunc_normal_(self.decoder.weight, std=0.02, generator=self.generator)
        nn.init.zeros_(self.decoder.get_parameter("bias"))
        weights = weights_and_biases(self.model)
        self.source = Anchor(weights)
        self.augment = Augmentation(flip=s.flip, move=s.move and self.model.task == "classification")
        self.learner = Learner([{"params": [*weights, *self.decoder.parameters(), self.token], "lr": s.learning_rate}])

    def step(self, images: Tensor) -> Tensor:
        """Predict, hide the tokens that views disagree on, and learn to do without them."""
        s = self.settings
        hidden = choose_hidden(self.uncertainty(images), s.mask, None if s.as_released else self.generator)
        with torch.no_grad():
            taught = self.infer(images)
        output = self.patches.run(self.model, images, hidden, self.token)
        consistency = following_loss(output.logits, taught)
        error = self.decoder(output.features).float() - hog(images, output.features.shape[-2:])
        reconstruction = masked_mean(error.square().mean(1, keepdim=True), hidden)
        self.learner.step(consistency + s.reconstruction_weight * reconstruction)
        if s.restore:
            restore(self.source.parameters_, self.source.values(), s.restore, self.generator)
        self.diagnostics.update(consistency=consistency.detach(), reconstruction=reconstruction.detach())
        return taught

    def uncertainty(self, images: Tensor) -> Tensor:
        """Variance of each token's mean over augmented views, (N, h, w)."""
        s = self.settings

        def means(view: Tensor) -> Tensor:
            return self.patches.run(self.model, view).features.float().mean(1)

        return over_views(means, lambda: self.augment(images, self.generator), s.views, s.views_at_once).var(0)
