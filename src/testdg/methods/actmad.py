"""ActMAD: activations get back the mean and variance that they have on the source (Mirza et al., CVPR 2023)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.methods import Adapter, Learner, Presets, Search, Settings, option, register
from testdg.methods.parts.blocks import pass_empty_image
from testdg.methods.parts.normalisation import affine_parameters, lacks_affine
from testdg.methods.parts.waiting import Waiting
from testdg.models import VisionModel
from testdg.models.blocks import watching


@dataclass(frozen=True, kw_only=True)
class ActMADSettings(Settings):
    trained: Literal["norm", "all"] = option("norm", "normalisation layers, or all parameters, as in the paper")
    learning_rate: float = option(1e-3, "learning rate of SGD with Nesterov momentum 0.9", low=0)
    weight_decay: float = option(0.0, "weight decay of the trained parameters", low=0)
    weight: float = option(0.5, "weight of the loss, which is a sum over layers", low=0)
    least_images: int = option(16, "minimum number of images in a step; smaller batches are collected", low=2)
    source_images: int = option(2048, "number of clean, unlabelled images for measuring the source", low=2)


def moment_distance(found: Tensor, source: Tensor, sizes: list[int]) -> Tensor:
    """Mean absolute gap of the moments (2, activations) in each layer, means and variances added; sum over layers."""
    gaps = (found - source).abs().sum(0)
    return torch.stack([layer.mean() for layer in torch.split(gaps, sizes)]).sum()


@register
class ActMAD(Adapter):
    """Match mean and variance of every single activation after the normalisation layers to those of the source."""

    name = "actmad"
    title = "ActMAD"
    citation = "Mirza et al., ActMAD: Activation Matching to Align Distributions for Test-Time-Training, CVPR 2023"
    example_error = 22.0
    needs = "normalisation layers and a fixed input size"
    source_data = "measuring mean and variance of every activation"
    least_source_images = 2
    Settings = ActMADSettings
    settings: ActMADSettings
    search = Search(rates=(1e-4, 1e-3, 0.01, 0.1, 0.5, 1), values={"trained": ("norm", "all")})
    presets: ClassVar[Presets] = {
        "cifar10-c": {"trained": "all", "learning_rate": 1e-2, "weight_decay": 5e-4},
        "cifar100-c": {"trained": "all", "learning_rate": 1e-3, "weight_decay": 5e-4},
        "imagenet-c": {"trained": "all", "learning_rate": 2.5e-4, "weight_decay": 5e-4},
    }
    uncopied = ("source",)  # it never changes in a step

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        if (reason := lacks_affine(model)) is not None:
            return reason
        return None if model.preprocessing.input_size else "its input has no fixed size, and activations have places"

    def build(self) -> None:
        s, model = self.settings, self.model
        free = list(model.parameters()) if s.trained == "all" else affine_parameters(model)
        self.learner = Learner([{"params": free, "lr": s.learning_rate, "weight_decay": s.weight_decay}], "sgd")
        self.waiting = Waiting(s.least_images, ("images",))
        names = {layer: name for name, layer in model.norm_layers()}
        self.sizes: dict[str, int] = {}  # activations of an image after each normalisation layer that runs

        def note(layer: nn.Module, _: Tensor, output: Tensor) -> None:
            self.sizes[names[layer]] = output[0].numel()

        with watching(*names, note=note):
            pass_empty_image(model)
        self.source: Tensor = nn.Buffer(torch.zeros(2, sum(self.sizes.values()), device=model.device))

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and mean and unbiased variance over images of each activation, (2, activations)."""
        by_layer: dict[nn.Module, Tensor] = {}

        def note(layer: nn.Module, _: object, output: Tensor) -> None:
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                output = output.clone()  # a ReLU may write over it
            variance, mean = torch.var_mean(output.float().flatten(1), 0)
            by_layer[layer] = torch.stack([mean, variance])

        layers = [self.model.get_submodule(name) for name in self.sizes]
        with watching(*layers, note=note):
            logits: Tensor = self.model(images).logits
        return logits, torch.cat([by_layer[layer] for layer in layers], 1)

    @torch.no_grad()
    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Average the moments of batches of source images; one image alone has no variance."""
        total, count = torch.zeros_like(self.source), 0
        for images, _ in batches:
            if len(images) > 1:
                total += self.moments(images)[1]
                count += 1
        if not count:
            raise UserError("actmad needs batches of two source images or more; got none", code="few-source-images")
        self.source.copy_(total / count)

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step towards the moments of the source once there are enough images."""
        return self.waiting.gather_for(self._learn, self.infer, images)

    def _learn(self, images: Tensor) -> Tensor:
        logits, moments = self.moments(images)
        loss = self.settings.weight * moment_distance(moments, self.source, list(self.sizes.values()))
        self.learner.step(loss)
        self.diagnostics["loss"] = loss.detach()
        return logits
