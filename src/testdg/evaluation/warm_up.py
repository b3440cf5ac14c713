"""Source data for methods that learn something before the stream."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from testdg.data.benchmarks import Benchmark
from testdg.data.stream import to_float
from testdg.errors import UserError
from testdg.methods import Adapter

BATCH = 64


def source_batches(adapter: Adapter, benchmark: Benchmark) -> Iterable[tuple[Tensor, Tensor]]:
    """Clean training images for `adapter.warm_up`, drawn by the adapter's seed; none where it wants none."""
    count = adapter.source_images()
    if not count:
        return ()
    try:
        samples = benchmark.train()
    except UserError as error:
        raise UserError(f"{adapter.name} needs source data for {adapter.source_data}: {error}") from error
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(adapter.settings.seed))
    parts = torch.split(order[:count], BATCH)
    return ((to_float(samples.take(part.tolist())), samples.labels[part]) for part in parts)
