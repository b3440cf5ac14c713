"""EcoTTA: meta networks on a frozen backbone, regularised towards it (Song et al., CVPR 2023). A reconstruction."""

import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.methods import Learner, Presets, Search, Settings, option, register
from testdg.methods.parts.added_layers import AddedLayer, AddedLayersAdapter, add_layers, added_layers, watched
from testdg.methods.parts.blocks import convolution_blocks, shapes, transformer_blocks
from testdg.methods.parts.entropy import hard_pixel_loss, reliable_entropy
from testdg.methods.parts.normalisation import use_batch_statistics
from testdg.methods.parts.views import FOUR_RATIOS, multiscale_probabilities
from testdg.methods.parts.warm_up import supervised, train_on_source
from testdg.models import VisionModel
from testdg.models.blocks import BlockOutput, first, with_first

FAINT = 0.01
"""Scale that the convolution of a meta network starts with; zero would leave its ReLU without a gradient."""


@dataclass(frozen=True, kw_only=True)
class EcottaSettings(Settings):
    learning_rate: float = option(5e-3, "learning rate of the meta networks", low=0)
    optimizer: Literal["adam", "momentum"] = option("momentum", "Adam, or SGD with momentum 0.9; for the warm-up too")
    regularisation: float = option(0.5, "weight of the distance to the frozen network", low=0)
    margin: float = option(0.4, "a reliable prediction has less than this share of the largest entropy, ln C", low=0)
    batch_statistics: bool = option(True, "in a classifier, BatchNorm layers use the statistics of the batch")
    source_images: int = option(12800, "labelled source images for the warm-up of the meta networks", low=1)
    warm_up_learning_rate: float = option(5e-3, "learning rate of the meta networks on source images", low=0)
    as_released: bool = option(False, "SegFormer: meta networks, labels and loss of the released baseline")


class MetaNetwork(AddedLayer):
    """BatchNorm of the output of a frozen part, plus convolution, BatchNorm and ReLU of its input.

    Maps are (N, C, H, W); tokens (N, T, C) have a kernel of 1. Inside `watched` it reports the mean absolute
    difference between the output of the part and its own, with gradients for this meta network only.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, kernel: int, *, generator: Generator, device: torch.device
    ) -> None:
        super().__init__()
        self.entered: Tensor | None = None
        self.norm, self.conv_norm = (nn.BatchNorm2d(outputs, device=device) for _ in range(2))
        self.conv = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Conv2d, inputs, outputs, kernel, stride, kernel // 2, bias=False, device=device
        )
        nn.init.kaiming_uniform_(self.conv.weight, math.sqrt(5), generator=generator)
        self.eval()

    def forward(self, entered: Tensor, left: Tensor) -> Tensor:
        """The adapted output of a part."""
        if left.ndim == 3:
            return self(entered.mT[..., None], left.mT[..., None])[..., 0].mT  # type: ignore[no-any-return]
        branch = F.relu(self.conv_norm(self.conv(entered)))
        if branch.shape[2:] != left.shape[2:]:  # the part may round the size of a map differently
            branch = F.interpolate(branch, left.shape[2:])
        return self.norm(left) + branch  # type: ignore[no-any-return]

    def adapt(self, entered: Tensor, left: Tensor) -> Tensor:
        """The same, with a report of the distance to the output of the part."""
        if self.seen is not None:
            frozen = left.detach()
            self.report((self(entered.detach(), frozen) - frozen).abs().mean())
        return self(entered, left)  # type: ignore[no-any-return]

    def enter(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.entered = inputs[0]

    def leave(self, _: nn.Module, __: object, output: BlockOutput) -> BlockOutput:
        return with_first(output, self.adapt(self._take(), first(output)))

    def _take(self) -> Tensor:
        entered, self.entered = self.entered, None
        assert entered is not None
        return entered


class StageMetaNetwork(MetaNetwork):
    """A meta network on one stage of a SegFormer; the next stage and the decoder get the adapted output."""

    stage: int
    adapted: Tensor | None = None

    def start(self, _: nn.Module, __: object, output: Tensor) -> None:
        """After the very first convolution, which belongs to no part."""
        self.entered = output

    def pass_on(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.adapted = self.adapt(self._take(), inputs[0])
        return (self.adapted, *inputs[1:])

    def decode(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        adapted, self.adapted = self.adapted, None
        maps = list(inputs[0])
        maps[self.stage] = self.adapt(self._take(), maps[self.stage]) if adapted is None else adapted
        return (tuple(maps), *inputs[1:])

    def decode_released(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Before the decoder, as released: from the stage's output alone."""
        maps = list(inputs[0])
        maps[self.stage] = self.adapt(maps[self.stage], maps[self.stage])
        return (tuple(maps), *inputs[1:])


def partition(blocks: int) -> list[tuple[int, int]]:
    """First and last block of each of four parts, which grow as 1, 1, 2, 2; fewer where blocks are few."""
    ends = {0, *(math.ceil(blocks * share / 6) for share in (1, 2, 4, 6))}
    return [(start, end - 1) for start, end in pairwise(sorted(ends))]


def add_to_classifier(model: VisionModel, generator: Generator) -> None:
    """Put a meta network on each of four parts of the blocks of a classifier."""
    blocks = transformer_blocks(model) or convolution_blocks(model)
    sizes = shapes(model, blocks)
    added = []
    for begin, end in partition(len(blocks)):
        before, after = sizes[begin][0], sizes[end][1]
        tokens = len(after) == 3
        if tokens:
            inputs, outputs, stride, kernel = before[2], after[2], 1, 1
        else:
            inputs, outputs, stride, kernel = before[1], after[1], max(1, round(before[-1] / after[-1])), 3
        meta = MetaNetwork(inputs, outputs, stride, kernel, generator=generator, device=model.device)
        blocks[begin].register_forward_pre_hook(meta.enter)
        blocks[end].register_forward_hook(meta.leave)
        added.append(meta)
    add_layers(model, added)


def add_to_segformer(model: VisionModel, generator: Generator, as_released: bool) -> None:
    """Put a meta network on each stage of a SegFormer."""
    network: Any = model.network
    convolutions = [layer for layer in network.segformer.modules() if isinstance(layer, nn.Conv2d)]
    embeddings = [layer for layer in convolutions if layer.groups == 1 and layer.kernel_size > layer.stride]
    added: list[StageMetaNetwork] = []
    for stage, conv in enumerate(embeddings):
        outputs = conv.out_channels
        strided = stage > 0 and not as_released
        shape = (conv.in_channels, outputs, 2, 3) if strided else (outputs, outputs, 1, 3)
        meta = StageMetaNetwork(*shape, generator=generator, device=model.device)
        meta.stage = stage
        if not as_released and stage == 0:
            conv.register_forward_hook(meta.start)
        elif not as_released:
            conv.register_forward_pre_hook(added[-1].pass_on)
            conv.register_forward_pre_hook(meta.enter)
        decode = meta.decode_released if as_released else meta.decode
        network.decode_head.register_forward_pre_hook(decode)
        added.append(meta)
    add_layers(model, added)


@torch.no_grad()
def begin_as_identity(model: VisionModel, images: Tensor) -> None:
    """Start meta networks as nearly the identity: scale and shift undo the normalisation of a batch."""

    def undo(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, nn.BatchNorm2d)
        variance, mean = torch.var_mean(inputs[0].float(), (0, 2, 3), correction=0)
        norm.weight.copy_((variance + norm.eps).sqrt())
        norm.bias.copy_(mean)
        norm.get_buffer("running_var").copy_(variance)
        norm.get_buffer("running_mean").copy_(mean)

    metas = added_layers(model)
    for meta in metas:
        meta.get_parameter("conv_norm.weight").fill_(FAINT)
    with ExitStack() as hooks:
        for meta in metas:
            hooks.enter_context(meta.get_submodule("norm").register_forward_pre_hook(undo))
        model(images)


@register
class Ecotta(AddedLayersAdapter):
    """Train small networks parallel to a frozen one on confident predictions, and keep their effect small."""

    name = "ecotta"
    title = "EcoTTA"
    citation = (
        "Song et al., EcoTTA: Memory-Efficient Continual Test-time Adaptation via Self-distilled Regularization, "
        "CVPR 2023"
    )
    example_error = 12.0
    tasks = ("classification", "segmentation")
    needs = "transformer or convolution blocks"
    source_data = "warming up the meta networks, without which the network breaks"
    source_labels = True
    reconstruction = True
    differs_from_source = "the warm-up learns too, and BatchNorm uses the batch's statistics"
    Settings = EcottaSettings
    settings: EcottaSettings
    search = Search(rates=(1e-3, 0.01, 0.1, 1), values={"regularisation": (0.1, 0.5, 2.0)})
    presets: ClassVar[Presets] = {
        "digits-c": {"learning_rate": 1e-4, "source_images": 1000},
        "cifar10-c": {},
        "cifar100-c": {},
        "imagenet-c": {},
        "acdc": {
            "learning_rate": 6e-7,
            "optimizer": "adam",
            "source_images": 40000,
            "warm_up_learning_rate": 6e-5,
            "as_released": True,
        },
    }

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        if model.task == "segmentation":
            return None
        blocks = transformer_blocks(model) or convolution_blocks(model)
        if not blocks:
            return "it has no list of blocks that could be divided into parts"
        sizes = shapes(model, blocks)
        if len(sizes) < len(blocks):
            return "some of its blocks do not run, so that they cannot be divided into parts"
        tokens = {size.numel() for pair in sizes for size in pair if len(size) == 3}
        if len(tokens) > 1 or any(len(size) not in (3, 4) for pair in sizes for size in pair):
            return "its blocks do not return maps or a fixed number of tokens"
        return None

    def build(self) -> None:
        s = self.settings
        if self.model.task == "segmentation":
            add_to_segformer(self.model, self.generator, s.as_released)
        else:
            add_to_classifier(self.model, self.generator)
        if self._of_batch:
            use_batch_statistics(self.model)
        self.learner = Learner([{"params": added_layers(self.model).parameters(), "lr": s.learning_rate}], s.optimizer)

    @property
    def _of_batch(self) -> bool:
        """Whether statistics are the batch's; a street scene alone has too few pixels in its last stage."""
        return self.settings.batch_statistics and self.model.task == "classification"

    @property
    def _released(self) -> bool:
        return self.settings.as_released and self.model.task == "segmentation"

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Train only the meta networks; their BatchNorm layers collect statistics."""
        s = self.settings
        optimizers = {"adam": torch.optim.AdamW, "momentum": torch.optim.SGD}
        more = {"momentum": 0.9} if s.optimizer == "momentum" else {}
        optimizer = optimizers[s.optimizer](self.learner.parameters_, s.warm_up_learning_rate, **more)
        metas = added_layers(self.model).train()
        clip, begin = (None, None) if self._released else (1.0, partial(begin_as_identity, self.model))
        train_on_source(supervised(self.infer), optimizer, batches, s.source_images, clip=clip, begin=begin)
        metas.train(self._of_batch)

    def step(self, images: Tensor) -> Tensor:
        """Predict, and take one step on the meta networks."""
        s = self.settings
        labels = None
        if self._released:  # log-probabilities, mean over eight views
            labels = multiscale_probabilities(self.model, images, FOUR_RATIOS)[1].clamp(min=1e-12).log()
        with watched(self.model) as seen:
            logits = self.infer(images)
        distance = torch.stack([values[0] for values in seen]).sum()
        if labels is None:
            loss, reliable = reliable_entropy(logits, s.margin)
        else:
            loss, reliable = hard_pixel_loss(logits, labels)
            distance = distance.detach()
        self.learner.step(loss + s.regularisation * distance)
        self.diagnostics.update(loss=loss.detach(), distance=distance.detach(), learnt_from=reliable.float().mean())
        return logits if labels is None else labels
