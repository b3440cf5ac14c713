"""`testdg methods`, `testdg benchmarks` and `testdg benchmarks --check`."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from testdg.data.benchmarks import benchmarks
from testdg.methods import Adapter, describe_settings, find_method, methods, order_for_display


def list_methods(as_json: bool) -> None:
    """Print every method with its tasks and needs; as JSON with its whole description."""
    about = [_about(method) for method in methods().values()]
    if as_json:
        print(json.dumps(about, indent=2))
        return
    predicted = {"classification": "classes", "segmentation": "maps"}
    shown = [{key: one[key] for key in ("name", "title", "tasks", "needs")} for one in about]
    _show([{**one, "tasks": [predicted[task] for task in one["tasks"]]} for one in shown])
    print("testdg methods NAME shows settings, presets, source data and citation of one.")


def list_benchmarks(as_json: bool) -> None:
    """Print name, task, classes, batch size, the paper's input and needs of every benchmark."""
    entries = [
        {
            "name": one.name,
            "title": one.title,
            "task": one.task,
            "classes": len(one.classes) or "by folder",
            "batch_size": one.batch_size,
            "paper_input": _paper_input(one.paper),
            "needs": one.needs or "nothing",
        }
        for one in benchmarks().values()
    ]
    if as_json:
        print(json.dumps(entries, indent=2))
    else:
        _show(entries)


def _paper_input(paper: Mapping[str, Any]) -> str:
    """The size and normalisation of the paper's input, in words."""
    if not paper:
        return "none"
    size, crop = paper["size"], paper.get("crop")
    edge = size if isinstance(size, int) else size[0]
    cut = f", centre {crop[0]}" if crop else ""
    return f"{edge} px {paper['resample']}{cut}; mean {paper['mean'][0]:g}, std {paper['std'][0]:g}"


def check_data(folders: Sequence[Path], as_json: bool) -> bool:
    """Print the contents and the problems of data folders; False if there are problems."""
    from testdg.data.check import check_folder, looked_for

    by_folder = {folder: check_folder(folder) for folder in folders}
    checks = [check for several in by_folder.values() for check in several]
    fine = all(by_folder.values()) and not any(check.problems for check in checks)
    if as_json:
        print(json.dumps([{**asdict(check), "folder": str(check.folder)} for check in checks], indent=2))
        return fine
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for folder in (folder for folder, several in by_folder.items() if not several):
        console.print(f"{folder} has no known data set: looked for {looked_for()}")
    if not checks:
        return fine
    rows = []
    for one in checks:
        state = "wrong" if one.problems else "fine"
        rows.append({"name": one.name, "state": state, "found": one.found, "place": str(one.folder)})
    _show(rows)
    for check in checks:
        for kind, sentences in (("wrong", check.problems), ("note", check.notes)):
            for sentence in sentences:
                console.print(f"{kind}  {check.name}: {sentence}")
    return fine


def show_method(name: str, as_json: bool) -> None:
    """Print a method with its settings and presets."""
    method = find_method(name)
    presets = {benchmark: dict(values) for benchmark, values in method.presets.items()}
    settings = describe_settings(method.Settings)
    if as_json:
        print(json.dumps({**_about(method), "settings": settings, "presets": presets}, indent=2))
        return
    console = Console(width=_width(), highlight=False, markup=False)
    described = " ".join((method.__doc__ or "").partition("Examples:")[0].split())
    console.print(f"{method.title} ({method.name}): {described}\n{method.citation}")
    needs = f"needs: {method.needs or 'nothing'}; source data: {method.source_data or 'none'}"
    console.print(f"tasks: {', '.join(method.tasks)}; {needs}")
    if method.reconstruction:
        console.print(f"a reconstruction for {' and '.join(method.reconstructed())}: no code of the authors exists")
    _show([{**one, "default": _plain(one["default"])} for one in order_for_display(method.Settings)])
    for preset, values in presets.items():
        applied = " (applied automatically)" if preset in benchmarks() and benchmarks()[preset].embedded else ""
        settings_of_preset = ", ".join(f"{key}={value}" for key, value in values.items())
        console.print(f"preset {preset}{applied}: {settings_of_preset}")


def _plain(value: Any) -> str:
    """A value as `--set` takes it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _about(method: type[Adapter]) -> dict[str, Any]:
    return {
        "name": method.name,
        "title": method.title,
        "tasks": list(method.tasks),
        "needs": method.needs or "nothing",
        "source_data": method.source_data or "none",
        "reconstruction": list(method.reconstructed()),
        "citation": method.citation,
    }


def _show(entries: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for key in entries[0]:
        table.add_column(key.replace("_", " "), no_wrap=key == "name", overflow="fold")
    for entry in entries:
        cells = [", ".join(value) if isinstance(value, list) else str(value) for value in entry.values()]
        table.add_row(*cells)
    Console(markup=False, highlight=False, width=_width()).print(table)


def _width() -> int | None:
    """The width of the terminal or of COLUMNS; 200 for a file or a pipe."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200
