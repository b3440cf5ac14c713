"""A guard in a run: its probe are clean images of the source, where there are any."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testdg.data.benchmarks import Benchmark
from testdg.data.image_files import find_images, read_image
from testdg.data.stream import to_float
from testdg.errors import UserError
from testdg.guards import Guard, guard
from testdg.guards.health import IMAGES
from testdg.methods import Adapter


def put_guard(adapter: Adapter, benchmark: Benchmark, source: Path | None = None) -> Any:
    """Put a guard around an adapter, which is used as the adapter itself."""
    return guard(adapter, probe_images(benchmark, source, IMAGES[adapter.model.task]))


def probe_images(benchmark: Benchmark, source: Path | None, count: int) -> Tensor | None:
    """A few images of the source: of a folder, or of the training set; None where there are none."""
    generator = torch.Generator().manual_seed(0)
    if source is not None:
        names = find_images(source)
        chosen = torch.randperm(len(names), generator=generator)[:count].tolist()
        images = [read_image(source / names[number]) for number in chosen]
        return torch.stack([image for image in images if image.shape == images[0].shape])
    with suppress(UserError):
        samples = benchmark.train()
        return to_float(samples.take(torch.randperm(len(samples), generator=generator)[:count].tolist()))
    return None


def tell_guard(adapter: Any) -> dict[str, int] | None:
    """How often a guard did what; None where there is none."""
    if not isinstance(adapter, Guard):
        return None
    return {action.replace(" ", "_"): count for action, count in adapter.counts.items()}
