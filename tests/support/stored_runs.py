"""Run folders with numbers that are known."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testdg.files import checksum
from testdg.report.page import Group, make_groups
from testdg.report.runs import read_runs
from testdg.runs.folder import RunFolder
from testdg.runs.result import Result

PREPROCESSING = {"size": [32, 32], "crop": "none", "mean": [0.5] * 3, "std": [0.5] * 3}
PROTOCOL: dict[str, Any] = {
    "kind": "continual", "benchmark": "digits-c", "task": "classification", "data": "generated",
    "data_fingerprint": "abc", "order": "the benchmark's", "held_out": [], "severity": 5, "rounds": 1,
    "images_per_domain": 4, "sampling": "file", "concentration": "none", "sampling_seed": "none", "batch_size": 2,
    "resets": "once at the start", "model": "vit", "model_fingerprint": "def", "preprocessing": PREPROCESSING,
    "precision": "fp32", "device": "cpu", "tuning": "the method's defaults",
}  # fmt: skip


def visit(name: str, score: float, number: int, segmentation: bool) -> dict[str, Any]:
    more = {"miou": score, "class_iou": [score, None], "error": 50.0} if segmentation else {"error": score, "nll": 0.5}
    return {"name": name, "images": 4, "severity": 5, "round": number, **more}


def write_run(
    folder: Path,
    method: str,
    scores: Mapping[str, float] | Sequence[Mapping[str, float]],
    *,
    seed: int = 0,
    held_out: Mapping[str, float] | None = None,
    settings: Mapping[str, Any] | None = None,
    change_at: int = -1,
    source: str | None = None,
    **protocol: Any,
) -> Path:
    """Write a complete run: scores of each domain, or of each domain in each round."""
    rounds = [scores] if isinstance(scores, Mapping) else list(scores)
    about = {**PROTOCOL, "seed": seed, "rounds": len(rounds), "domains": list(rounds[0]), **protocol}
    about |= {"held_out": list(held_out)} if held_out else {}
    maps = about["task"] == "segmentation"
    visits = [visit(name, one[name], n, maps) for n, one in enumerate(rounds, 1) for name in one]
    tested = [visit(name, score, 1, maps) for name, score in (held_out or {}).items()]
    result = {
        "protocol": about,
        "method": {"name": method, "settings": {"seed": seed, **(settings or {})}},
        "domains": visits,
        "held_out": tested or None,
        "seconds": 2.0,
        "versions": {"testdg": "0.1.0"},
        **({} if source is None else {"source": source}),
        **({"classes": ["road", "sky"]} if maps else {}),
    }
    phases = [(one, "adapt") for one in visits] + [(one, "held_out") for one in tested]
    events = [
        {**event(one, maps), "phase": phase, "batch": n, "diagnostics": {"change": n == change_at}}
        for n, (one, phase) in enumerate(pair for pair in phases for _ in range(2))
    ]
    run = RunFolder(folder, {key: result[key] for key in ("protocol", "method")})
    with run.open():
        run.append(events)
        run.finish(Result.from_dict(result, folder))
    return folder


def rewrite(folder: Path, values: dict[str, Any]) -> None:
    """Replace the result of a run, with the checksum that belongs to it."""
    values = {key: value for key, value in values.items() if key != "checksum"}
    (folder / "result.json").write_text(json.dumps({**values, "checksum": checksum(values)}))


def event(one: dict[str, Any], maps: bool) -> dict[str, Any]:
    more = {"confusion": [[3, 1], [1, 3]]} if maps else {"nll": 0.0, "early": [0, 0], "gaps": {}}
    part = {"segment": 0, "images": 2, "errors": 1, **more}
    return {"domain": one["name"], "severity": 5, "round": one["round"], "images": 2, "errors": 1, "parts": [part]}


def groups_of(folder: Path) -> list[Group]:
    return make_groups(read_runs([folder]).results)


def three_methods(folder: Path) -> Path:
    """Source, and two methods with two seeds."""
    write_run(folder / "a", "source", {"fog": 40.0, "snow": 20.0})
    for seed, (fog, snow) in enumerate([(30.0, 22.0), (34.0, 22.0)]):
        write_run(folder / f"b{seed}", "tent", {"fog": fog, "snow": snow}, seed=seed)
        write_run(folder / f"c{seed}", "testdg", {"fog": fog - 20, "snow": snow - 4}, seed=seed, change_at=2)
    return folder
