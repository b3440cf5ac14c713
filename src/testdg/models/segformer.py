"""SegFormers of transformers, B0 to B5: differences from a classifier, and from the published network."""

import math
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models.blocks import config_of, name_classes
from testdg.models.model import Output, VisionModel
from testdg.models.preprocessing import Preprocessing

IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""Default preprocessing of SegFormers: normalised, not resized."""

SEGFORMERS = {
    "segformer-b0": ([32, 64, 160, 256], [2, 2, 2, 2], 256),
    "segformer-b1": ([64, 128, 320, 512], [2, 2, 2, 2], 256),
    "segformer-b2": ([64, 128, 320, 512], [3, 4, 6, 3], 768),
    "segformer-b3": ([64, 128, 320, 512], [3, 4, 18, 3], 768),
    "segformer-b4": ([64, 128, 320, 512], [3, 8, 27, 3], 768),
    "segformer-b5": ([64, 128, 320, 512], [3, 6, 40, 3], 768),
}
"""The published sizes: widths and depths of the stages, width of the decoder."""


class SegmentationModel(VisionModel):
    """A SegFormer: logits at the size of the input, features are the map of the last encoder stage.

    The network itself predicts at a quarter of the input's size; its logits are enlarged here (bilinear), so that
    methods see a prediction for every pixel. The score enlarges them once more where label maps are larger.
    """

    task = "segmentation"
    network: Any

    def run(self, prepared: Tensor) -> Output:
        """Normalise prepared images and run the network once."""
        stages = self.stages(prepared)
        logits = self.network.decode_head(stages)
        logits = F.interpolate(logits, prepared.shape[-2:], mode="bilinear", align_corners=False)
        return Output(logits, stages[-1])

    def stages(self, prepared: Tensor) -> tuple[Tensor, ...]:
        """The maps of the encoder's stages, (N, D, h, w), from a quarter of the input's size to a thirty-second."""
        (height, width), least = prepared.shape[-2:], self.smallest
        if min(height, width) < least:
            small = f"{self.name} needs pictures of at least {least} x {least} px; got {height} x {width}"
            raise UserError(f"{small}: use larger pictures, views or windows", code="image-shape")
        return self.network.segformer(self.normalise(prepared), output_hidden_states=True).hidden_states  # type: ignore[no-any-return]

    @property
    def smallest(self) -> int:
        """Side of the smallest input: every stage reduces its keys and values by a ratio that its map must have."""
        config = self.network.config
        steps: Iterable[int] = accumulate(config.strides, operator.mul)
        return max(int(ratio - 1) * step + 1 for ratio, step in zip(config.sr_ratios, steps, strict=True))

    @property
    def feature_size(self) -> int:
        """Width of the last encoder stage."""
        return int(self.network.config.hidden_sizes[-1])


def make_segformer(classes: int, **options: object) -> nn.Module:
    """A SegFormer of transformers, with the LayerNorms of the published network."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    network: nn.Module = SegformerForSemanticSegmentation(SegformerConfig(num_labels=classes, **options))
    set_epsilon(network)
    return network


def tiny_segformer(classes: int) -> nn.Module:
    """A SegFormer of two hundred thousand parameters: one block a stage, logits at a quarter of the input's size."""
    return make_segformer(
        classes,
        depths=[1] * 4,
        hidden_sizes=[16, 32, 48, 64],
        num_attention_heads=[1, 2, 3, 4],
        mlp_ratios=[2] * 4,
        decoder_hidden_size=64,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
    )


def random_segformer(name: str, classes: Sequence[str], seed: int = 0) -> SegmentationModel:
    """A SegFormer of a published size, or a "tiny" one, with weights drawn from a seed."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        if name == "tiny":
            network = tiny_segformer(len(classes))
        else:
            widths, depths, decoder = SEGFORMERS[name]
            network = make_segformer(len(classes), hidden_sizes=widths, depths=depths, decoder_hidden_size=decoder)
        draw_weights(network)
    name_classes(network, classes)
    return SegmentationModel(network, "decode_head.classifier", IMAGENET, name).eval()


@torch.no_grad()
def draw_weights(network: nn.Module) -> None:
    """Draw the weights as the published network does: kernels by the number of their outputs, linears narrow.

    Transformers draws kernels as narrow as linears, so that hardly anything passes the depthwise ones.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            outputs = math.prod(module.kernel_size) * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / outputs))
        elif isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    nn.init.normal_(network.get_submodule("decode_head.classifier").get_parameter("weight"), std=0.02)


def set_epsilon(network: nn.Module) -> None:
    """Give the LayerNorms of blocks and stages the epsilon of the configuration, 1e-6 as in the published network.

    Transformers leaves them at 1e-5. Norms behind a convolution (patch embedding, reduction of keys and values) have
    1e-5 in both.
    """
    for parent in network.modules():
        children = list(parent.children())
        if any(isinstance(child, nn.Conv2d) for child in children):
            continue
        for child in children:
            if isinstance(child, nn.LayerNorm):
                child.eps = config_of(network).layer_norm_eps
