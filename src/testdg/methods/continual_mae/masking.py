"""Patch tokens: where they enter and leave a model, which of them to hide, and a pass with some of them hidden."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.methods.parts.blocks import hooked, pass_empty_image
from testdg.models import Output, VisionModel

MOST_OTHER_TOKENS = 16
"""Class and register tokens that may stand before those of the patches."""


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

        def enter(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            seen["entered"] = output
            return output if hidden is None or token is None else replace(output, hidden, token)

        def leave(_: nn.Module, __: Any, output: Tensor) -> None:
            seen["left"] = output

        hooks = {self.entry: enter} if self.exit is None else {self.entry: enter, self.exit: leave}
        with hooked(*((model.get_submodule(name), hook) for name, hook in hooks.items())):
            output: Output = model(images)
        if self.exit is None:
            return output
        height, width = seen["entered"].shape[-2:]
        tokens = seen["left"][:, -height * width :]  # the class token and its like come first
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
    """What each module gives for one empty image, in the order in which they finish."""
    names = {module: name for name, module in model.named_modules()}
    outputs: dict[str, Tensor] = {}

    def note(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs.pop(names[module], None)
            outputs[names[module]] = output

    with hooked(*((module, note) for module in names)):
        pass_empty_image(model)
    return outputs
