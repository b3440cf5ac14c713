"""The battery: naming and running checks, and their shared parts: a stream, and states to compare."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from testdg.core.state import Values
from testdg.methods import Adapter

MakeAdapter = Callable[..., Adapter]
Snapshot = tuple[dict[str, Tensor], Values]
Check = Callable[[MakeAdapter], None]
CHECKS: dict[str, Check] = {}


def check_adapter(make_adapter: MakeAdapter, *, only: str | None = None) -> list[str]:
    """Run the checks that every adapter passes; AssertionError with the name of the check that fails.

    Args:
        make_adapter: A function that takes settings and makes a new adapter of the same model.
        only: The name of one check.

    Returns:
        The names of the checks that ran: all without those that the method declares as exceptions for this model.

    Examples:
        >>> from functools import partial
        >>> import testdg
        >>> from testdg.models import TinyViT
        >>> from testdg.testing import check_adapter
        >>> model = testdg.load_model(TinyViT(width=16, depth=1), preprocessing=testdg.Preprocessing((32, 32)))
        >>> check_adapter(partial(testdg.adapt, model, "tent"), only="reset is exact")
        ['reset is exact']
    """
    adapter = make_adapter()
    excused = adapter.exceptions(adapter.model)
    assert excused.keys() <= CHECKS.keys(), f"exceptions name unknown checks: {sorted(excused.keys() - CHECKS.keys())}"
    chosen = [name for name in CHECKS if name not in excused and only in (None, name)]
    for name in chosen:
        try:
            CHECKS[name](make_adapter)
        except AssertionError as error:
            raise AssertionError(f"{adapter.name} on {adapter.model.name}: {name}: {error}") from error
    return chosen


def warmed_up(make_adapter: MakeAdapter) -> MakeAdapter:
    """Make adapters that have seen source data, if they need some."""

    def make(**settings: Any) -> Adapter:
        adapter = make_adapter(**settings)
        if adapter.awaits_source:
            adapter.warm_up(source_batches(adapter))
        return adapter

    return make


def source_batches(adapter: Adapter) -> list[tuple[Tensor, Tensor]]:
    """Images and labels for a warm-up."""
    labels = torch.arange(6) % adapter.model.classes
    if adapter.model.task == "segmentation":
        labels = labels.view(6, 1, 1).expand(6, 8, 8)
    batches = max(2, -(-adapter.least_source_images // 6))
    return [(images, labels) for images in stream(adapter, batches, 6, seed=1)]


def check(name: str, *, warm: bool = True) -> Callable[[Check], Check]:
    """Add a check to the battery; its adapters have seen the source data that they need, unless `warm` is False."""

    def add(function: Check) -> Check:
        CHECKS[name] = (lambda make: function(warmed_up(make))) if warm else function
        return function

    return add


def stream(adapter: Adapter, batches: int = 4, size: int = 6, seed: int = 0) -> list[Tensor]:
    """Batches of smooth random images whose brightness and noise change half way."""
    generator = torch.Generator().manual_seed(seed)
    height, width = adapter.model.preprocessing.input_size or (32, 32)
    drawn = []
    for k in range(batches):
        coarse = torch.rand(size, adapter.model.channels, 4, 4, generator=generator)
        images = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
        if k >= batches // 2:
            images = (0.3 * images + 0.6 + 0.1 * torch.randn(images.shape, generator=generator)).clamp(0, 1)
        drawn.append(images.to(adapter.model.device))
    return drawn


def same_state(one: Adapter, other: Adapter) -> str | None:
    """Name the first difference between the states of two adapters; None where they are equal, bit for bit."""
    return difference(snapshot(one), snapshot(other))


def snapshot(adapter: Adapter) -> Snapshot:
    """Copy everything that the next batch depends on."""
    return {name: value.clone() for name, value in adapter.tensors().items()}, adapter.values()


def difference(one: Snapshot, other: Snapshot) -> str | None:
    """Name the first difference between two snapshots."""
    if one[0].keys() != other[0].keys():
        return f"tensors {sorted(one[0].keys() ^ other[0].keys())}"
    for name, value in one[0].items():
        if not torch.equal(value.cpu(), other[0][name].cpu()):
            return name
    return None if one[1] == other[1] else f"values {one[1]} and {other[1]}"


def assert_equal(one: Adapter, other: Adapter) -> None:
    differs = same_state(one, other)
    assert differs is None, f"states differ in {differs}"
