"""`testdg methods` and `testdg benchmarks`."""

from __future__ import annotations

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from testdg.data.benchmarks import benchmarks
from testdg.methods import Adapter, describe_settings, find_method, methods


def list_methods(as_json: bool) -> None:
    """Name, title, tasks, needs and citation of every method."""
    _show([_about(kind) for kind in methods().values()], as_json)


def list_benchmarks(as_json: bool) -> None:
    """Name, task, classes, batch size and needs of every benchmark."""
    found = [
        {
            "name": kind.name,
            "title": kind.title,
            "task": kind.task,
            "classes": len(kind.classes),
            "batch_size": kind.batch_size,
            "needs": kind.needs or "nothing",
        }
        for kind in benchmarks().values()
    ]
    _show(found, as_json)


def show_method(name: str, as_json: bool) -> None:
    """One method with its settings and presets."""
    kind = find_method(name)
    presets = {benchmark: dict(values) for benchmark, values in kind.presets.items()}
    settings = describe_settings(kind.Settings)
    if as_json:
        print(json.dumps({**_about(kind), "settings": settings, "presets": presets}, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{kind.title} ({kind.name}): {' '.join((kind.__doc__ or '').split())}\n{kind.citation}\n")
    _show(settings, False)
    for benchmark, values in presets.items():
        console.print(f"preset {benchmark}{_applied(benchmark)}: {', '.join(f'{k}={v}' for k, v in values.items())}")


def _applied(preset: str) -> str:
    """Tell a preset that is applied by itself from those that must be asked for."""
    kind = benchmarks().get(preset)
    return " (applied by itself)" if kind is not None and kind.embedded else ""


def _about(kind: type[Adapter]) -> dict[str, Any]:
    return {
        "name": kind.name,
        "title": kind.title,
        "tasks": list(kind.tasks),
        "needs": kind.needs or "nothing",
        "citation": kind.citation,
    }


def _show(entries: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for key in entries[0]:
        table.add_column(key.replace("_", " "), no_wrap=key == "name")
    for entry in entries:
        table.add_row(*(", ".join(value) if isinstance(value, list) else str(value) for value in entry.values()))
    Console(markup=False, highlight=False).print(table)
