"""Align: move the statistics of the stream to those of clean images, in one pass and without gradients."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from testdg.core.weights import frozen_copy
from testdg.errors import UserError
from testdg.methods import Adapter, Presets, Search, Settings, option, register
from testdg.methods.parts.blocks import prefix_tokens, transformer_blocks
from testdg.methods.parts.class_mix import ClassMix
from testdg.methods.parts.normalisation import aligned_norms, batch_norms
from testdg.methods.parts.waiting import Waiting
from testdg.models import VisionModel
from testdg.models.alignment import Alignment, Reads
from testdg.models.blocks import holding

LEAST = 64
"""Minimum number of source images; statistics of fewer are noise."""
BEGINNING = 100.0
"""Weight of the source, in images, when a stream begins."""


@dataclass(frozen=True, kw_only=True)
class AlignSettings(Settings):
    sites: int = option(2, "blocks of a transformer, evenly spaced, after which tokens are aligned; 0 for none", low=0)
    class_token: bool = option(True, "align class and register tokens, too, not only the patches")
    memory: int = option(800, "images in the running statistics of a transformer's tokens", low=1)
    norm_memory: int = option(128, "images in the running statistics of BatchNorm layers", low=0)
    norm_source: float = option(
        1.5, "images of the source for each image of the stream in the statistics of BatchNorm layers", low=0
    )
    threshold: float = option(
        0.5, "gap to the memory that means a new domain; 1 is as far as any class of the source is from all", low=0
    )
    alone: bool = option(
        False, "predict() and the exported model align each image alone: half its own statistics, half the source's"
    )
    class_mix: bool = option(
        True, "where the stream shows few classes at a time, prefer those of its last images (classifiers)"
    )
    mix_temperature: float = option(
        2.5, "divides the logits that the class mix reads: networks are overconfident on corrupted images", low=0.1
    )
    source_images: int = option(256, "number of clean, unlabelled images for measuring the source", low=LEAST)
    sketch: Literal["source", "stream"] = option(
        "source", "which images are measured: source images (warm_up), or the first images of the stream without these"
    )


ONE_PICTURE: Mapping[str, object] = {"norm_memory": 0, "norm_source": 0.0}
"""Single street scenes: BatchNorm layers use the statistics of the picture."""
PRESETS: Presets = {
    "digits-c": {"mix_temperature": 1.5},
    "streets": ONE_PICTURE,
    "folder-weather": ONE_PICTURE,
}


def site_names(model: VisionModel, sites: int) -> list[str]:
    """Blocks that divide the depth of a transformer evenly: the fifth and ninth of 12 blocks for two sites."""
    blocks = transformer_blocks(model)
    names = {block: name for name, block in model.network.named_modules()}
    chosen = sorted({len(blocks) * k // (sites + 1) for k in range(1, sites + 1)}) if blocks else []
    return [names[blocks[place]] for place in chosen]


def first_images(batches: Iterable[Tensor], images: int) -> list[Tensor]:
    """The first source images, batch by batch; fewer than `LEAST` are refused."""
    taken: list[Tensor] = []
    for batch in batches:
        taken.append(batch[: images - sum(map(len, taken))])
        if sum(map(len, taken)) >= images:
            break
    if (seen := sum(map(len, taken))) < LEAST:
        raise UserError(f"alignment needs at least {LEAST} source images; got {seen}", code="few-source-images")
    return taken


@register
class Align(Adapter):
    """Move the tokens in the middle of a transformer (and BatchNorm statistics) from the stream to the source."""

    name = "align"
    title = "Align"
    citation = "this library; kin: AdaBN, alpha-BN, FOA, NEO"
    example_error = 9.5
    tasks = ("classification", "segmentation")
    needs = "a transformer, or BatchNorm"
    source_data = "measuring what its statistics should be"
    source_labels = False
    least_source_images = LEAST
    checks_input_late = True
    handles_bunches = True
    differs_from_source = "statistics follow the stream"
    Settings = AlignSettings
    settings: AlignSettings
    search = Search(values={"sites": (1, 2, 3, 4), "memory": (400, 800, 1600)})
    presets: ClassVar[Presets] = PRESETS

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        return None if site_names(model, 1) or batch_norms(model) else "it has neither transformer blocks nor BatchNorm"

    @staticmethod
    def alignment_of(model: VisionModel) -> Alignment:
        """The alignment of a model of the method."""
        assert model.alignment is not None
        return model.alignment

    def build(self) -> None:
        s, model = self.settings, self.model
        self.beginning = Waiting(s.source_images, ("images",))
        self.begun: Tensor = nn.Buffer(torch.zeros((), dtype=torch.bool, device=model.device))
        has_mix = s.class_mix and model.task == "classification" and model.classes > 1
        self.class_mix = ClassMix(model.classes, model.device, s.mix_temperature) if has_mix else None
        names = site_names(model, s.sites)
        Alignment(
            model,
            names,
            prefix=prefix_tokens(model, names[0]) if names else 0,
            class_token=s.class_token,
            memory=s.memory,
            threshold=s.threshold,
            norms=aligned_norms(model),
            norm_memory=s.norm_memory,
            norm_source=s.norm_source,
        )

    def source_images(self) -> int:
        return self.settings.source_images if self.measures and self.settings.sketch == "source" else 0

    @property
    def measures(self) -> bool:
        """Whether the method has to measure anything on source images."""
        return bool(self.alignment_of(self.model).sites)

    def remarks(self) -> list[str]:
        """A remark for the record if the model is aligned to the stream itself instead of the source."""
        if self.settings.sketch == "source" or not self.measures:
            return []
        return [f"aligned to the first {self.settings.source_images} images of the stream, not to the source"]

    def begin(self, images: Tensor) -> Tensor | None:
        """Predict with the unchanged model while the beginning of the stream is collected in place of the source."""
        if self.settings.sketch == "source" or not self.measures or self.begun:
            return None
        self.to_host()
        gathered = self.beginning.gather(images.detach())
        with torch.no_grad():
            logits: Tensor = self.model.run(images).logits
        if gathered is not None:
            self.learn_source((part, part.new_empty(0)) for part in torch.split(gathered[0], LEAST))
            self.begun.fill_(True)
        return logits

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.measure(first_images((images for images, _ in batches), self.settings.source_images))

    def measure(self, images: list[Tensor]) -> None:
        """Measure the source on prepared images; BatchNorm layers already have its statistics."""
        if (alignment := self.alignment_of(self.model)).sites:
            alignment.measure(self.model.run, images, BEGINNING)

    @torch.no_grad()
    def step(self, images: Tensor) -> Tensor:
        """Predict with the statistics of the stream, and update them; `to_host` refuses a bad batch before that.

        This takes one pass. A batch with a large gap is run again, with its own statistics (`Alignment.settle`).
        """
        if (early := self.begin(images)) is not None:
            return early
        if batch_norms(self.model):  # the pass itself changes their memory: refuse a bad batch before it
            self.to_host()
        alignment = self.alignment_of(self.model)
        with alignment.follow():
            output = self.model.run(images)
        (gap,) = self.to_host(alignment.propose(output.logits))
        output, changed = alignment.settle(lambda: self.model.run(images), output, gap)
        self.diagnostics.update(change=changed, gap=gap)
        return output.logits

    def in_stream(self, logits: Tensor) -> Tensor:
        """Shift predictions towards the classes that the stream shows at present."""
        if self.class_mix is None:
            return logits
        logits, gate = self.class_mix.follow(logits)
        self.diagnostics["bunched"] = gate
        return logits

    def stream_shift(self) -> Tensor | None:
        """The shift of the class mix."""
        return None if self.class_mix is None else self.class_mix.shift()

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the memory, or with the statistics of the images if they are of another domain."""
        with self.reading(self.model):
            return self.model(images).logits  # type: ignore[no-any-return]

    def reading(self, model: VisionModel) -> AbstractContextManager[None]:
        """Context in which a model reads the statistics for predictions."""
        return holding([self.alignment_of(model)], "reads", self._reads, usual="memory")

    def predicting_model(self) -> VisionModel:
        return self.as_predicts(self.model)

    def as_predicts(self, model: VisionModel) -> VisionModel:
        """A copy of a model that predicts as `infer` does."""
        model = frozen_copy(model)
        self.alignment_of(model).reads = self._reads
        return model

    @property
    def _reads(self) -> Reads:
        """Which statistics predictions use; until the source is measured, only the memory."""
        known = not self.awaits_source and (self.settings.sketch == "source" or bool(self.begun))
        if not known:
            return "memory"
        return "image" if self.settings.alone else "batch"
