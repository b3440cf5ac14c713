"""Figures: the error over the stream, with the domains underneath."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testdg.errors import UserError

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00")
Events = Sequence[Mapping[str, Any]]


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the events of a run folder."""
    path = folder / "events.jsonl"
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete the folder to start again") from error


def draw_stream(path: Path, runs: Mapping[str, Events], title: str, note: str = "") -> Path:
    """Draw the rolling error of each run over the stream and write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(12, 4.8), dpi=130, layout="constrained")
    events = next(iter(runs.values()))
    positions = np.cumsum([event["images"] for event in events])
    window = max(3, len(events) // 75)
    _draw_domains(axes, events, positions)
    for colour, (name, run) in zip(COLOURS, runs.items(), strict=False):
        _draw_run(axes, name, run, positions, window, colour)
    axes.set(xlabel="images seen", ylabel=f"error, % (mean of {window} batches)", xlim=(0, positions[-1]))
    axes.set_ylim(0, min(100, axes.get_ylim()[1] * 1.02))
    axes.set_title(f"{note}\n\n\n\n\n\n" if note else "", loc="left", fontsize=8, color="#444444")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.legend(loc="upper right", ncols=2 * len(runs), frameon=False)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    fresh = path.with_name("." + path.name)  # renamed when it is whole
    try:
        figure.savefig(fresh, format="png")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another folder with --out") from error
    finally:
        plt.close(figure)
    return path


def _draw_run(axes: Any, name: str, run: Events, positions: Any, window: int, colour: str) -> None:
    errors = np.array([event["errors"] for event in run], float)
    images = np.array([event["images"] for event in run], float)
    domains = [event["domain"] for event in run]
    curve = 100 * _rolling(errors, domains, window) / _rolling(images, domains, window)
    axes.plot(
        positions, curve, color=colour, linewidth=1.6, label=f"{name} ({100 * errors.sum() / images.sum():.1f} %)"
    )
    changes = [position for position, event in zip(positions, run, strict=True) if event.get("change") is True]
    if changes:
        floor = np.zeros(len(changes))
        axes.plot(changes, floor, "^", color=colour, clip_on=False, markersize=7, label=f"{name}: change detected")


def _rolling(values: Any, domains: Sequence[str], window: int) -> Any:
    """Sum over the last batches of the same domain."""
    result = np.empty_like(values)
    start = 0
    for number in range(len(values)):
        if domains[number] != domains[start]:
            start = number
        result[number] = values[max(start, number + 1 - window) : number + 1].sum()
    return result


def _draw_domains(axes: Any, events: Events, positions: Any) -> None:
    """Shade every other domain and write its name above."""
    begin, shade = 0, False
    for number, event in enumerate(events):
        last = number + 1 == len(events) or events[number + 1]["domain"] != event["domain"]
        if last:
            end = positions[number]
            axes.axvspan(begin, end, color="#000000", alpha=0.06 if shade else 0, linewidth=0)
            label = event["domain"].replace("_", " ") + (" *" if event["phase"] == "held_out" else "")
            place = ((begin + end) / 2, 1.01)
            axes.text(*place, label, transform=axes.get_xaxis_transform(), rotation=35, fontsize=8, ha="left")
            begin, shade = end, not shade
