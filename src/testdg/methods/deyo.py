"""DeYO: entropy of predictions that depend on the shape of the object (Lee et al., ICLR 2024)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from testdg.methods import Presets, Search, option, register
from testdg.methods.parts.affine import OPTIMIZERS, EarlierAffineAdapter, EarlierAffineSettings
from testdg.methods.parts.entropy import entropy, largest_entropy, masked_mean


@dataclass(frozen=True, kw_only=True)
class DeYOSettings(EarlierAffineSettings):
    learning_rate: float = option(1e-3, "learning rate of the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd", "momentum"] = option("momentum", OPTIMIZERS)
    margin: float = option(0.5, "a reliable prediction has less than this share of the largest entropy, ln C", low=0)
    weight_margin: float = option(0.4, "share of ln C at which the entropy weighs an image by 1", low=0)
    least_difference: float = option(
        0.2, "what the predicted class must lose when the object is destroyed", low=-1, high=1
    )
    destroy: Literal["tiles", "centre", "pixels"] = option(
        "tiles", "shuffle tiles, each image by itself; cover the centre by the mean; or shuffle pixels"
    )
    tiles: int = option(4, "tiles along each side", low=1)


def shuffle_tiles(images: Tensor, tiles: int, generator: Generator) -> Tensor:
    """Cut each image into tiles x tiles, and put them together in an order of its own."""
    size = images.shape[-2:]
    whole = [max(side // tiles, 1) * tiles for side in size]
    height, width = (side // tiles for side in whole)
    cut = _resize(images, whole).reshape(*images.shape[:2], tiles, height, tiles, width)
    cut = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (N, t t, C, h, w)
    order = torch.rand(cut.shape[:2], generator=generator, device=images.device).argsort(1)
    mixed = cut.gather(1, order[..., None, None, None].expand_as(cut))
    mixed = mixed.view(len(images), tiles, tiles, -1, height, width)
    return _resize(mixed.permute(0, 3, 1, 4, 2, 5).reshape(*images.shape[:2], *whole), size)


def _resize(images: Tensor, size: list[int] | torch.Size) -> Tensor:
    same = images.shape[-2:] == torch.Size(size)
    return images if same else F.interpolate(images, tuple(size), mode="bilinear", align_corners=False)


def cover_centre(images: Tensor) -> Tensor:
    """Put the mean colour of each image on the square of half its side in the middle."""
    height, width = images.shape[-2:]
    covered = images.clone()
    covered[..., height // 4 : height * 3 // 4, width // 4 : width * 3 // 4] = images.mean((2, 3), keepdim=True)
    return covered


def shuffle_pixels(images: Tensor, generator: Generator) -> Tensor:
    """Put the pixels of all images in one random order."""
    pixels = images.flatten(2)
    order = torch.rand(pixels.shape[2], generator=generator, device=images.device).argsort()
    return pixels[..., order].view_as(images)


def label_difference(logits: Tensor, destroyed: Tensor) -> Tensor:
    """What the probability of the predicted class loses when the object is destroyed, in [-1, 1]."""
    lost = logits.float().softmax(1) - destroyed.float().softmax(1)
    return lost.gather(1, logits.argmax(1, keepdim=True))[:, 0]


def image_weights(entropies: Tensor, difference: Tensor, limit: float) -> Tensor:
    """More for sure predictions, and more for those that depend on the object."""
    return (limit - entropies).exp() + difference.exp()


def shape_loss(
    entropies: Tensor, difference: Tensor, classes: int, settings: DeYOSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted mean entropy of the predictions that pass both filters; which are reliable, and which pass both."""
    fixed = entropies.detach()
    reliable = fixed < largest_entropy(classes, settings.margin)
    chosen = reliable & (difference > settings.least_difference)
    weights = image_weights(fixed, difference, largest_entropy(classes, settings.weight_margin))
    return masked_mean(weights * entropies, chosen), reliable, chosen


@register
class DeYO(EarlierAffineAdapter):
    """Lower the entropy of sure predictions that fall apart when the object does."""

    name = "deyo"
    title = "DeYO"
    citation = (
        "Lee et al., Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors, "
        "ICLR 2024"
    )
    example_error = 19.5
    Settings = DeYOSettings
    settings: DeYOSettings
    search = Search(rates=(0.01, 0.1, 0.3, 1), values={"least_difference": (0.1, 0.2, 0.4)})
    presets: ClassVar[Presets] = {
        "digits-c": {"optimizer": "adam"},
        "cifar10-c": {"optimizer": "adam", "fixed": 0.0},
        "cifar100-c": {"optimizer": "adam", "fixed": 0.0},
        "imagenet-c": {"learning_rate": 1e-3},
    }

    def step(self, images: Tensor) -> Tensor:
        """Predict the images and what is left of them, and take one step on those that pass both filters."""
        logits: Tensor = self.model(images).logits
        with torch.no_grad():
            difference = label_difference(logits, self.model(self.destroyed(images)).logits)
        loss, reliable, chosen = shape_loss(entropy(logits), difference, self.model.classes, self.settings)
        self.learner.step(loss, when=chosen.any())
        self.diagnostics.update(loss=loss.detach(), reliable=reliable.sum(), learnt_from=chosen.sum())
        return logits

    def destroyed(self, images: Tensor) -> Tensor:
        """Images whose objects are destroyed."""
        if self.settings.destroy == "tiles":
            return shuffle_tiles(images, self.settings.tiles, self.generator)
        return cover_centre(images) if self.settings.destroy == "centre" else shuffle_pixels(images, self.generator)
