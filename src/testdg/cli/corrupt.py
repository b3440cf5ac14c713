"""`testdg corrupt`: a corrupted data set on disk, in the published layout."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from testdg.cli.bar import Bar
from testdg.data.benchmarks import load_benchmark
from testdg.data.benchmarks.corruption import CorruptionBenchmark
from testdg.data.generate import ALL, MANIFEST, Plan, Tell, write_arrays, write_pictures
from testdg.errors import UserError, unknown

FOLDERS = {"cifar10-c": "CIFAR-10-C", "cifar100-c": "CIFAR-100-C", "imagenet-c": "ImageNet-C"}


def corrupt_command(benchmark: str, data: Path, out: Path, images: int | None, plan: Plan, *, as_json: bool) -> None:
    """Make the data set and tell where it is."""
    if benchmark not in FOLDERS:
        raise unknown("corrupted data set", benchmark, FOLDERS)
    folder = out / FOLDERS[benchmark]
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with Bar(console) as bar:
        _write(benchmark, folder, data, images, plan, bar.update)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if as_json:
        print(json.dumps(manifest, indent=2))
        return
    made = f"{len(manifest['corruptions'])} corruptions of {manifest['images']} images"
    how = f"severity {', '.join(map(str, manifest['severities']))}; seed {plan.seed}, frost {manifest['frost']}"
    console.print(f"{folder}: {made} at {how}", markup=False)


def _write(benchmark: str, folder: Path, data: Path, images: int | None, plan: Plan, tell: Tell) -> None:
    if images is not None and images < 1:
        raise UserError(f"images must be at least 1; got {images}")
    if not data.is_dir():
        raise UserError(f"data folder {data} does not exist: expected a folder with clean images")
    if benchmark == "imagenet-c":
        write_pictures(folder, data, images, plan, tell)
        return
    bench = load_benchmark(benchmark, data, images=images)
    if not isinstance(bench, CorruptionBenchmark):
        raise TypeError(f"{benchmark} has no clean images to corrupt")
    write_arrays(folder, bench.clean, bench.frost, plan, tell)


def parse_plan(corruptions: str | None, severities: str | None, seed: int, jobs: int) -> Plan:
    """Read names and numbers that are separated by commas."""
    names = ALL if corruptions is None else tuple(_split(corruptions))
    levels = Plan.severities if severities is None else tuple(_whole(text) for text in _split(severities))
    return Plan(names, levels, seed, jobs)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"severity must be 1 to 5; got {text!r}") from error
