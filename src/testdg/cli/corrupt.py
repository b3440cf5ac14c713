"""`testdg corrupt`: a corrupted data set on disk, in the published layout."""

import json
from pathlib import Path

from rich.console import Console

from testdg.cli.screen import Bar
from testdg.data.generate import ALL, MANIFEST, CorruptOptions, write_set
from testdg.errors import UserError


def corrupt_command(
    benchmark: str, data: Path, out: Path, images: int | None, options: CorruptOptions, *, as_json: bool
) -> None:
    """Make the data set and tell where it is."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with Bar(console) as bar:
        folder = write_set(benchmark, data, out, images, options, bar.update)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if as_json:
        print(json.dumps(manifest, indent=2))
        return
    made = f"{len(manifest['corruptions'])} corruptions of {manifest['images']} images"
    how = f"severity {', '.join(map(str, manifest['severities']))}; seed {options.seed}, frost {manifest['frost']}"
    console.print(f"{folder}: {made} at {how}", markup=False)


def parse_options(corruptions: str | None, severities: str | None, seed: int, jobs: int) -> CorruptOptions:
    """Read names and numbers that are separated by commas."""
    names = ALL if corruptions is None else tuple(_split(corruptions))
    levels = CorruptOptions.severities if severities is None else tuple(_whole(text) for text in _split(severities))
    return CorruptOptions(names, levels, seed, jobs)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"severity must be 1 to 5; got {text!r}", code="wrong-severity") from error
