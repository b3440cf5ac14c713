"""Where a run comes from: its source model, named by the user or the benchmark's own, trained once; and source data.

Methods learn something from source data before the stream, which is kept for the next time; a guard has its probe.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from testdg.data.benchmarks import Benchmark
from testdg.data.image_files import find_images, read_image
from testdg.data.stream import to_float
from testdg.errors import UserError, unknown
from testdg.files import checksum, replacing
from testdg.methods import Adapter
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.models.model import tensor_bytes
from testdg.runs.observer import Observer
from testdg.runs.training.cache import cache_folder
from testdg.runs.training.embedded import default_recipe, trained_model
from testdg.version import __version__

RECIPE = 4
"""Counts up when a warm-up computes something else, so that what was kept before is not used."""
_PROBED = 0  # seed of the choice of a probe
BATCH = {"classification": 64, "segmentation": 8}


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
        benchmark: What `load_benchmark` gives.
        model: Whatever `load_model` takes; left out, the model of an embedded benchmark, trained once and kept.
        device: Where it should lie.
        observer: Hears how the training goes.
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
        raise UserError(f"the paper has no {benchmark.name}: leave out --preprocessing paper")
    wanted = Preprocessing(**benchmark.paper) if preprocessing == "paper" else None
    if model is not None:
        chosen = load_model(model, preprocessing=wanted)
    elif benchmark.embedded:
        chosen = trained_model(benchmark, default_recipe(benchmark), (observer or Observer()).training)
    else:
        raise UserError(f"{benchmark.name} has no model of its own: name one with --model (a folder or a hub id)")
    if chosen.task != benchmark.task:
        raise UserError(f"model {chosen.name} is for {chosen.task}; {benchmark.name} is for {benchmark.task}")
    size = chosen.preprocessing.size or chosen.preprocessing.crop  # of pictures that it takes without resizing
    benchmark.adopt(size if size is None or isinstance(size, int) else max(size), chosen.class_names)
    if chosen.classes != len(benchmark.classes):
        classes = len(benchmark.classes)
        told = f"model {chosen.name} tells {chosen.classes} classes apart; {benchmark.name} has {classes}"
        raise UserError(f"{told}: name another model, or train it for them with testdg train")
    if wanted is not None and chosen.preprocessing != wanted:
        raise UserError(f"model {chosen.name} was loaded with its own preprocessing: give the paper's to load_model")
    return chosen.to(device)


def warm_up(adapter: Adapter, benchmark: Benchmark, source: Path | None = None) -> None:
    """Let an adapter learn from clean images what it wants to: of a folder, or of the benchmark's training set.

    What it learnt from the latter is kept for the next time.
    """
    if not adapter.awaits_source:
        return
    batches = source_batches(adapter, benchmark, source)
    if source is not None:
        adapter.warm_up(batches)
        return
    key = _key(adapter, benchmark)
    path = cache_folder() / "warm-ups" / f"{adapter.name}-{key}.safetensors"
    with suppress(OSError, SafetensorError, UserError):  # it is not there, or not whole
        adapter.load_warm(read_warm(path, key))
        return
    adapter.warm_up(batches)
    with suppress(OSError, SafetensorError):  # no room for it: the next run does it again
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as fresh:
            save_file(dict(adapter.warm), fresh, {"key": key, "checksum": _checksum(adapter.warm)})


def read_warm(path: Path, key: str) -> dict[str, Tensor]:
    """Read a warm-up that was kept, if it is whole and the one that is meant."""
    with safe_open(path, "pt") as file:
        about = file.metadata() or {}
    warm: dict[str, Tensor] = load_file(path)
    if about.get("key") != key or about.get("checksum") != _checksum(warm):
        raise UserError(f"{path} is damaged: delete it, and it is made again")
    return warm


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    parts = [name.encode() + tensor_bytes(value) for name, value in sorted(tensors.items())]
    return checksum(b"".join(parts))


def _key(adapter: Adapter, benchmark: Benchmark) -> str:
    """Everything that a warm-up depends on, in sixteen digits."""
    model, images = adapter.model, [benchmark.name, benchmark.fingerprint(), len(benchmark.train())]
    made_by = [RECIPE, __version__, torch.__version__, model.device.type]
    parts = [asdict(adapter.settings), model.fingerprint(), images, made_by]
    return checksum(json.dumps(parts, default=str).encode(), 8)


def source_batches(
    adapter: Adapter, benchmark: Benchmark, source: Path | None = None
) -> Iterable[Tensor | tuple[Tensor, Tensor]]:
    """Clean images for `adapter.warm_up`, drawn by the adapter's seed, in rounds where there are too few."""
    count = adapter.source_images()
    if not count:
        return ()
    if source is not None:
        return folder_batches(adapter, source)
    try:
        samples = benchmark.train()
    except UserError as error:
        remedy = "" if adapter.source_labels else "; or name a folder of clean images with --source"
        raise UserError(f"{adapter.name} needs source data for {adapter.source_data}: {error}{remedy}") from error
    generator = torch.Generator().manual_seed(adapter.settings.seed)
    rounds = -(-count // len(samples))
    order = torch.cat([torch.randperm(len(samples), generator=generator) for _ in range(rounds)])[:count]
    parts = torch.split(order, BATCH[benchmark.task])
    return ((to_float(samples.take(part.tolist())), samples.labels[part]) for part in parts)


def folder_batches(adapter: Adapter, folder: Path) -> Iterator[Tensor]:
    """Images of a folder, without labels, drawn by the adapter's seed; those of one size that follow share a batch."""
    if adapter.source_labels:
        raise UserError(f"{adapter.name} learns from labelled source images, which --source cannot give: leave it out")
    files = [folder / name for name in find_images(folder)]
    if len(files) < adapter.least_source_images:
        needed = adapter.least_source_images
        raise UserError(f"{folder} holds {len(files)} images; {adapter.name} needs at least {needed} of the source")
    images = _read_some(files, adapter.source_images(), adapter.settings.seed)
    return _in_batches(images, BATCH[adapter.model.task])


def _read_some(files: Sequence[Path], count: int, seed: int) -> Iterator[Tensor]:
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed))
    return (read_image(files[number]) for number in order[:count].tolist())


def _in_batches(images: Iterable[Tensor], most: int) -> Iterator[Tensor]:
    for _, group in groupby(images, lambda image: image.shape):
        while batch := list(islice(group, most)):
            yield torch.stack(batch)


def probe_images(benchmark: Benchmark, source: Path | None, count: int) -> Tensor | None:
    """A few images of the source for a guard: of a folder, or of the training set; None where there are none."""
    if source is not None:
        images = list(_read_some([source / name for name in find_images(source)], count, _PROBED))
        return torch.stack([image for image in images if image.shape == images[0].shape])
    with suppress(UserError):
        samples = benchmark.train()
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(_PROBED))
        return to_float(samples.take(order[:count].tolist()))
    return None
