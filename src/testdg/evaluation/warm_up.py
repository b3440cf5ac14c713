"""Source data for methods that learn something before the stream; what they learnt is kept for the next time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from testdg.data.benchmarks import Benchmark
from testdg.data.stream import to_float
from testdg.errors import UserError
from testdg.evaluation.training import cache_folder
from testdg.files import replacing
from testdg.methods import Adapter
from testdg.version import __version__

RECIPE = 2
"""Counts up when a warm-up computes something else, so that what was kept before is not used."""
BATCH = {"classification": 64, "segmentation": 8}


def warm_up(adapter: Adapter, benchmark: Benchmark) -> None:
    """Let an adapter learn from the clean training images what it wants to; from the cache if it did so before."""
    if not adapter.awaits_source:
        return
    batches = source_batches(adapter, benchmark)
    path = cache_folder() / "warm-ups" / f"{adapter.name}-{_key(adapter, benchmark)}.safetensors"
    with suppress(OSError, SafetensorError, UserError):  # it is not there, or not whole
        adapter.load_warm(load_file(path))
        return
    adapter.warm_up(batches)
    with suppress(OSError, SafetensorError):  # no room for it: the next run does it again
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as fresh:
            save_file(dict(adapter.warm), fresh)


def _key(adapter: Adapter, benchmark: Benchmark) -> str:
    """Everything that a warm-up depends on, in sixteen digits."""
    model, images = adapter.model, [benchmark.name, benchmark.fingerprint(), len(benchmark.train())]
    made_by = [RECIPE, __version__, torch.__version__, model.device.type]
    parts = [asdict(adapter.settings), model.fingerprint(), images, made_by]
    return hashlib.blake2b(json.dumps(parts, default=str).encode(), digest_size=8).hexdigest()


def source_batches(adapter: Adapter, benchmark: Benchmark) -> Iterable[tuple[Tensor, Tensor]]:
    """Clean training images for `adapter.warm_up`, drawn by the adapter's seed, in rounds where there are too few."""
    count = adapter.source_images()
    if not count:
        return ()
    try:
        samples = benchmark.train()
    except UserError as error:
        raise UserError(f"{adapter.name} needs source data for {adapter.source_data}: {error}") from error
    generator = torch.Generator().manual_seed(adapter.settings.seed)
    rounds = -(-count // len(samples))
    order = torch.cat([torch.randperm(len(samples), generator=generator) for _ in range(rounds)])[:count]
    parts = torch.split(order, BATCH[benchmark.task])
    return ((to_float(samples.take(part.tolist())), samples.labels[part]) for part in parts)
