"""Draw the accuracy of linear probes along the stream."""

from typing import Any

import numpy as np

from testdg.report.style import GREY, PALETTE, label_figure, new_figure

_COLOURS = {"class": PALETTE[1], "domain": PALETTE[0]}


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """Colour says what is read (class or domain), one panel for each space; bands are a standard error."""
    spaces = list(dict.fromkeys(name.split(" from ")[1] for name in numbers["probes"]))
    figure, grid = new_figure(4.6 * len(spaces) + 0.4, 4.2, 1, len(spaces), sharey=True)
    for axes, space in zip(grid[0], spaces, strict=True):
        for target, colour in _COLOURS.items():
            if (found := numbers["probes"].get(f"{target} from {space}")) is not None:
                _curve(axes, numbers["positions"], found, colour, target)
                axes.axhline(
                    numbers["chance"][target], color=colour, linestyle=":", linewidth=1, label=f"{target}: chance"
                )
        for position in numbers["positions"][1:]:
            axes.axvline(position, color=GREY, alpha=0.3, linewidth=0.6)
        axes.set(xlabel="images seen (grey: end of a domain)", ylim=(0, 102), title=f"from {space}")
        axes.set_xlim(0, None)
        axes.grid(axis="y")
    grid[0, 0].set_ylabel("accuracy of a linear probe, %")
    handles = grid[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center")
    label_figure(figure, title, note)
    return figure


def _curve(axes: Any, positions: list[int], found: dict[str, list[float]], colour: str, name: str) -> None:
    mean, error = np.array(found["mean"]), np.array(found["error"])
    axes.plot(positions, mean, "o-", color=colour, markersize=3.5, linewidth=1.4, label=name)
    axes.fill_between(positions, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
