"""Figures: the error (or mIoU) over the stream, with the domains underneath."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testdg.errors import UserError
from testdg.evaluation.scores import find_score
from testdg.files import replacing

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00")
Events = Sequence[Mapping[str, Any]]
_MOST_LABELS = 30  # names of domains that fit above the axes


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the events of a run folder."""
    path = folder / "events.jsonl"
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete the folder to start again") from error


def draw_stream(
    path: Path, runs: Mapping[str, Events], title: str, note: str = "", task: str = "classification"
) -> Path:
    """Draw the rolling error (mIoU for segmentation) of each run over the stream and write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(12, 4.8), dpi=130, layout="constrained")
    events = next(iter(runs.values()))
    positions = np.cumsum([event["images"] for event in events])
    window = max(3, len(events) // 75)
    _draw_domains(axes, events, positions)
    for colour, (name, run) in zip(COLOURS, runs.items(), strict=False):
        _draw_run(axes, name, run, positions, window, colour, task)
    seen = "images seen (darker: more severe)" if _several_severities(events) else "images seen"
    measured = "mIoU, % (over" if task == "segmentation" else "error, % (mean of"
    axes.set(xlabel=seen, ylabel=f"{measured} {window} batches)", xlim=(0, positions[-1]))
    axes.set_ylim(0, min(100, axes.get_ylim()[1] * 1.02))
    axes.set_title(f"{note}\n\n\n\n\n\n" if note else "", loc="left", fontsize=8, color="#444444")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    few = len(runs) <= 2  # more would run into the title
    figure.legend(loc="upper right" if few else "outside lower center", ncols=2 * len(runs), frameon=False)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure as PNG, in one step, and close it."""
    from matplotlib import pyplot as plt

    try:
        with replacing(path) as fresh:
            figure.savefig(fresh, format="png")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another folder with --out") from error
    finally:
        plt.close(figure)
    return path


def _draw_run(axes: Any, name: str, run: Events, positions: Any, window: int, colour: str, task: str) -> None:
    sums = np.array([_sums(event, task) for event in run], float)  # (batches, K)
    curve = rolling_scores(run, window, task)
    parts = [sums[first:stop].sum(0) for first, stop in visit_spans(run)] if task == "segmentation" else [sums.sum(0)]
    mean = np.mean([_percent(part, task) for part in parts])
    axes.plot(positions, curve, color=colour, linewidth=1.6, label=f"{name} ({mean:.1f} %)")
    changes = [position for position, event in zip(positions, run, strict=True) if event.get("change") is True]
    if changes:
        floor = np.zeros(len(changes))
        axes.plot(changes, floor, "^", color=colour, clip_on=False, markersize=7, label=f"{name}: change detected")


def rolling_scores(run: Events, window: int, task: str) -> list[float]:
    """The error (mIoU for segmentation) of the last batches of the same visit, after each batch."""
    sums = np.array([_sums(event, task) for event in run], float)  # (batches, K)
    return [_percent(row, task) for row in _rolling(sums, [_visit(event) for event in run], window)]


def _sums(event: Mapping[str, Any], task: str) -> Any:
    """What is added up over batches: errors and images, or the confusion matrix of the pixels."""
    if task == "classification":
        return [event["errors"], event["images"]]
    return sum(find_score(task).unpack(part) for part in event["parts"])


def _percent(sums: Any, task: str) -> float:
    """Error of some batches, or mIoU; NaN where no pixel has a class."""
    if task == "classification":
        return 100 * float(sums[0] / sums[1])
    found = find_score(task).metrics(sums, 0)["miou"]
    return float("nan") if found is None else float(found)


def _visit(event: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one visit from the next."""
    return event.get("round", 1), event["phase"], event["domain"], event.get("severity")


def _rolling(values: Any, visits: Sequence[tuple[Any, ...]], window: int) -> Any:
    """Sums over the last batches of the same visit, (batches, K)."""
    result = np.empty_like(values)
    start = 0
    for number in range(len(values)):
        if visits[number] != visits[start]:
            start = number
        result[number] = values[max(start, number + 1 - window) : number + 1].sum(0)
    return result


def _draw_domains(axes: Any, events: Events, positions: Any) -> None:
    """Shade every other visit, or each by its severity, and write names above."""
    ends = [0, *positions]
    severities = _several_severities(events)
    for count, (first, stop) in enumerate(visit_spans(events)):
        alpha = 0.025 * (events[first].get("severity") or 0) if severities else 0.06 * (count % 2)
        axes.axvspan(ends[first], ends[stop], color="#000000", alpha=alpha, linewidth=0)
    domains, rounds = visit_spans(events, 3), visit_spans(events, 1)
    many = len(domains) > _MOST_LABELS and len(rounds) > 1
    labelled, written = rounds if many else domains, -np.inf
    for first, stop in labelled:
        middle = (ends[first] + ends[stop]) / 2
        if first and (many or severities):
            axes.axvline(ends[first], color="#888888", linewidth=0.8)
        if middle - written >= positions[-1] / _MOST_LABELS:
            label = f"round {events[first]['round']}" if many else _label(events[first], len(rounds))
            place = {"transform": axes.get_xaxis_transform(), "rotation": 35, "fontsize": 8, "ha": "left"}
            axes.text(middle, 1.01, label, **place)
            written = middle


def _several_severities(events: Events) -> bool:
    return len({event.get("severity") for event in events}) > 1


def visit_spans(events: Events, fields: int = 4) -> list[tuple[int, int]]:
    """First batch, and the one after the last, of each run of batches that agree in the first fields of a visit."""
    keys = [_visit(event)[:fields] for event in events]
    firsts = [number for number in range(len(keys)) if number == 0 or keys[number] != keys[number - 1]]
    return list(zip(firsts, [*firsts[1:], len(keys)], strict=True))


def _label(event: Mapping[str, Any], rounds: int) -> str:
    """Name of a domain, with the round where there are several and a star where it only tests."""
    name = str(event["domain"]).replace("_", " ")
    if event["phase"] == "held_out":
        return f"{name} *"
    return f"{name} ({event['round']})" if rounds > 1 else name
