"""Source models and source images: what a stream is adapted from.

A source model is named by the user, or is the benchmark's own, trained once. Source images are clean images: those of
the benchmark's training set, or of a folder. Methods learn from them before the stream (`warm_up`), and a guard has a
few of them as its probe.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from testdg.core.adapter import Adapter
from testdg.core.guard.probe import IMAGES
from testdg.core.online import OnlineModel
from testdg.data.benchmarks import Benchmark
from testdg.data.frames import PictureFolder
from testdg.data.pictures import Unreadable, decode
from testdg.data.stream import to_float
from testdg.errors import UserError, unknown
from testdg.files import cache_folder, checksum, replacing
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.models.canvas import Canvas
from testdg.models.model import tensor_bytes
from testdg.runs.observer import Observer
from testdg.runs.training.embedded import default_recipe, trained_model
from testdg.version import __version__

RECIPE = 4
"""Increases when a warm-up computes something else, so that cached warm-ups are not used."""
_PROBE_SEED = 0
BATCH = {"classification": 64, "segmentation": 8}
Batches = Iterator[Tensor | tuple[Tensor, Tensor]]


def source_model(
    benchmark: Benchmark,
    model: str | Path | nn.Module | None = None,
    *,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
    preprocessing: str = "model",
) -> VisionModel:
    """Load the model to adapt, and check that it fits the benchmark.

    Args:
        benchmark: A benchmark, from `load_benchmark`.
        model: Whatever `load_model` takes; left out, the model of an embedded benchmark, trained once and cached.
        device: Where it should lie.
        observer: Notified of the progress of the training.
        preprocessing: "model" for the model's own, "paper" for that of the published tables.

    Examples:
        >>> import testdg
        >>> from testdg.runs import source_model
        >>> model = source_model(testdg.load_benchmark("digits-c"))
        >>> model.classes, model.preprocessing.size
        (10, (32, 32))
    """
    if preprocessing not in ("model", "paper"):
        raise unknown("preprocessing", preprocessing, ("model", "paper"))
    if preprocessing == "paper" and not benchmark.paper:
        raise UserError(f"the paper has no {benchmark.name}: leave out --preprocessing paper", code="no-paper-input")
    required = Preprocessing(**benchmark.paper) if preprocessing == "paper" else None
    if model is not None:
        chosen = load_model(model, preprocessing=required)
    elif benchmark.embedded:
        chosen = trained_model(benchmark, default_recipe(benchmark), (observer or Observer()).training)
    else:
        raise UserError(
            f"{benchmark.name} has no model of its own: name one with --model (a folder or a hub id)", code="no-model"
        )
    if chosen.task != benchmark.task:
        message = f"model {chosen.name} is for {chosen.task}; {benchmark.name} is for {benchmark.task}"
        raise UserError(message, code="wrong-task")
    size = chosen.preprocessing.size or chosen.preprocessing.crop  # of pictures that it takes without resizing
    benchmark.adopt(size if size is None or isinstance(size, int) else max(size), chosen.class_names)
    if chosen.classes != len(benchmark.classes):
        classes = len(benchmark.classes)
        message = f"model {chosen.name} has {chosen.classes} classes; {benchmark.name} has {classes}"
        raise UserError(f"{message}: name another model, or train it with testdg train", code="wrong-classes")
    if required is not None and chosen.preprocessing != required:
        message = f"model {chosen.name} was loaded with its own preprocessing: pass the paper's to load_model"
        raise UserError(message, code="other-preprocessing")
    return chosen.to(device)


class SourceImages(ABC):
    @abstractmethod
    def batches(self, adapter: Adapter) -> Batches:
        """As many images as a method learns from, drawn by its seed; pairs with labels where it needs them.

        Images that cannot be had are an error at once, not when the first batch is read.
        """

    @abstractmethod
    def probe(self, adapter: Adapter) -> Tensor | None:
        """A few images for a guard; None if the first images of `warm_up` serve, or if there are none."""

    def cache_key(self, adapter: Adapter) -> str | None:
        """Everything that a warm-up on these images depends on, as hexadecimal digits; None if it is not cached."""
        return None


class TrainingImages(SourceImages):
    """The training images of a benchmark, repeated if there are too few."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark = benchmark

    def batches(self, adapter: Adapter) -> Batches:
        """Images with labels."""
        count = adapter.source_images()
        try:
            samples = self.benchmark.train()
        except UserError as error:
            remedy = "" if adapter.source_labels else "; or name a folder of clean images with --source"
            message = f"{adapter.name} needs source data for {adapter.source_data}: {error}{remedy}"
            raise UserError(message, code="no-source-data") from error
        generator = torch.Generator().manual_seed(adapter.settings.seed)
        rounds = -(-count // len(samples))
        order = torch.cat([torch.randperm(len(samples), generator=generator) for _ in range(rounds)])[:count]
        parts = torch.split(order, BATCH[self.benchmark.task])
        return ((to_float(samples.take(part.tolist())), samples.labels[part]) for part in parts)

    def probe(self, adapter: Adapter) -> Tensor | None:
        """Images drawn by a seed of their own."""
        with suppress(UserError):
            samples = self.benchmark.train()
            order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(_PROBE_SEED))
            return to_float(samples.take(order[: IMAGES[adapter.model.task]].tolist()))
        return None

    def cache_key(self, adapter: Adapter) -> str | None:
        """Settings, weights, images and versions."""
        images = [self.benchmark.name, self.benchmark.fingerprint(), len(self.benchmark.train())]
        made_by = [RECIPE, __version__, torch.__version__, adapter.model.device.type]
        parts = [asdict(adapter.settings), adapter.origin["fingerprint"], images, made_by]
        return checksum(json.dumps(parts, default=str).encode(), 8)


class SourceFolder(SourceImages):
    """A folder of clean pictures, in any tree; `<class>/<file>` where a method needs labels.

    Pictures are drawn by a seed; unreadable ones are left out. A method that trains on them (with labels) gets them
    repeatedly if there are too few. A method that measures statistics does not: an image must not count twice.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        if not path.is_dir():
            message = f"--source {path} is not a folder: name one with clean pictures in it"
            raise UserError(message, code="no-source-folder")
        self.path, self.names = path, list(names)
        self.files = [frame.file for frame in PictureFolder(path) if frame is not None]

    def batches(self, adapter: Adapter) -> Batches:
        """Pictures of one size each; with labels if the method needs them."""
        if len(self.files) < adapter.least_source_images:
            least = adapter.least_source_images
            message = f"{self.path} holds {len(self.files)} pictures; {adapter.name} needs at least {least}"
            raise UserError(message, code="too-few-images")
        if adapter.source_labels and adapter.model.task == "segmentation":
            message = f"{adapter.name} needs label maps, which --source cannot give: choose another method"
            raise UserError(message, code="no-source-labels")
        labels = self._labels() if adapter.source_labels else None
        read = self._read(adapter, adapter.source_images(), BATCH[adapter.model.task], adapter.settings.seed)
        if labels is None:
            return (images for _, images in read)
        return ((images, torch.tensor([labels[file] for file in files])) for files, images in read)

    def probe(self, adapter: Adapter) -> Tensor | None:
        """A few pictures of one size, where `warm_up` shows none."""
        if adapter.awaits_source:
            return None
        count = IMAGES[adapter.model.task]
        return next(images for _, images in self._read(adapter, count, count, _PROBE_SEED))

    def _read(self, adapter: Adapter, count: int, size: int, seed: int) -> Iterator[tuple[list[str], Tensor]]:
        canvas, channels = Canvas(adapter.model.preprocessing), adapter.model.channels
        generator, left = torch.Generator().manual_seed(seed), count
        while left > 0:
            before = left
            order = torch.randperm(len(self.files), generator=generator).tolist()
            for start in range(0, len(order), size):
                read: list[tuple[str, Tensor]] = []
                for number in order[start : start + min(size, left)]:
                    with suppress(Unreadable):
                        file = self.files[number]
                        read.append((file, canvas.shrink(decode(self.path / file, channels))))
                for places, images in canvas.batches([image for _, image in read]):
                    yield [read[place][0] for place in places], images
                left -= len(read)
                if left <= 0:
                    return
            if left < before and not adapter.source_labels:
                return
            if left == before:
                message = f"none of the {len(self.files)} pictures of --source {self.path} can be read"
                raise UserError(message, code="unreadable")

    def _labels(self) -> dict[str, int]:
        """The class of each picture, by its folder: named like a class, or as many folders as there are classes."""
        folders = sorted({file.split("/")[0] for file in self.files if "/" in file})
        known = {name: number for number, name in enumerate(self.names)}
        if not set(folders) <= known.keys():
            if len(folders) != len(self.names):
                reason = f"expected <class>/<file> for the {len(self.names)} classes; got {len(folders)} folders"
                message = f"--source {self.path} has no labels, which the method needs: {reason}"
                raise UserError(message, code="no-source-labels")
            known = {name: number for number, name in enumerate(folders)}
        if loose := [file for file in self.files if "/" not in file]:
            message = f"--source {self.path}: {loose[0]} is not in a folder of a class, which the method needs"
            raise UserError(message, code="no-source-labels")
        return {file: known[file.split("/")[0]] for file in self.files}


def cached_warm_up(online: OnlineModel, key: str, source: SourceImages) -> None:
    """Warm an adapter up by a cached warm-up of the same key, or compute it and cache it."""
    adapter = online.adapter
    path = cache_folder() / "warm-ups" / f"{adapter.name}-{key}.safetensors"
    with suppress(OSError, SafetensorError, UserError):  # there is none, or it is incomplete
        adapter.load_warm(read_warm(path, key))
        return
    online.warm_up(source.batches(adapter))
    with suppress(OSError, SafetensorError):  # without room for it, the next run computes it again
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as fresh:
            save_file(dict(adapter.warm), fresh, {"key": key, "checksum": _checksum(adapter.warm)})


def read_warm(path: Path, key: str) -> dict[str, Tensor]:
    """Read a cached warm-up, if it is complete and belongs to the key."""
    with safe_open(path, "pt") as file:
        about = file.metadata() or {}
    warm: dict[str, Tensor] = load_file(path)
    if about.get("key") != key or about.get("checksum") != _checksum(warm):
        raise UserError(f"{path} is damaged: delete it, and it is made again", code="damaged-file")
    return warm


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    parts = [name.encode() + tensor_bytes(value) for name, value in sorted(tensors.items())]
    return checksum(b"".join(parts))
