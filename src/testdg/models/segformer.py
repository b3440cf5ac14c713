"""SegFormers of transformers, B0 to B5: what differs from a classifier, and from the network that was published."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from testdg.models.model import Output, VisionModel
from testdg.models.preprocessing import Preprocessing

IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""How SegFormers see images where no file says otherwise: as they come, normalised."""


class SegmentationModel(VisionModel):
    """A SegFormer: logits at the size of the input, features are the map of the last encoder stage.

    The network itself predicts at a quarter of the input's size; its logits are enlarged here (bilinear), so that
    methods see a prediction for every pixel. The score enlarges them once more where label maps are larger.
    """

    task = "segmentation"

    def forward(self, prepared: Tensor) -> Output:
        """Normalise prepared images and run the network once."""
        network: Any = self.network
        stages = self.stages(prepared)
        logits = network.decode_head(stages)
        logits = F.interpolate(logits, prepared.shape[-2:], mode="bilinear", align_corners=False)
        return Output(logits, stages[-1])

    def stages(self, prepared: Tensor) -> tuple[Tensor, ...]:
        """The maps of the encoder's stages, (N, D, h, w), from a quarter of the input's size to a thirty-second."""
        network: Any = self.network
        found: tuple[Tensor, ...] = network.segformer(self.normalise(prepared), output_hidden_states=True).hidden_states
        return found

    @property
    def feature_size(self) -> int:
        """Width of the last encoder stage."""
        network: Any = self.network
        return int(network.config.hidden_sizes[-1])


def set_epsilon(network: nn.Module) -> None:
    """Give the LayerNorms of blocks and stages the epsilon of the configuration, 1e-6 as in the published network.

    Transformers leaves them at 1e-5. Norms behind a convolution (patch embedding, reduction of keys and values) have
    1e-5 in both.
    """
    config: Any = network.config
    for parent in network.modules():
        children = list(parent.children())
        if any(isinstance(child, nn.Conv2d) for child in children):
            continue
        for child in children:
            if isinstance(child, nn.LayerNorm):
                child.eps = config.layer_norm_eps
