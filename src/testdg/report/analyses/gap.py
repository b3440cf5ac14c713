"""Draw the distances between domains as two heat maps."""

from typing import Any

import numpy as np

from testdg.report.style import label_figure, new_figure


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """Before and after on one scale; a domain has no distance to itself."""
    names = [name.replace("_", " ") for name in numbers["domains"]]
    side = max(2.6, 0.27 * len(names) + 1.0)
    figure, grid = new_figure(2 * side + 1.4, side + 1.3, 1, 2)
    top = max(np.max(numbers[when]["distance"]) for when in ("before", "after"))
    for axes, when in zip(grid[0], ("before", "after"), strict=True):
        matrix = np.array(numbers[when]["distance"], float)
        np.fill_diagonal(matrix, np.nan)
        picture = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=top or 1)
        axes.set_facecolor("#DDDDDD")
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
        axes.set_yticks(range(len(names)), names if when == "before" else [], fontsize=7)
        axes.spines[:].set_visible(False)
        axes.set_title(_heading(when, numbers[when]), loc="left", fontsize=8)
    figure.colorbar(picture, ax=grid[0], label=f"Chamfer distance of {numbers['space']} (squared units)", shrink=0.8)
    label_figure(figure, title, note)
    return figure


def _heading(when: str, distances: dict[str, Any]) -> str:
    if distances["mean"] is None:
        return f"{when} adaptation"
    relative = "" if distances["mean_relative"] is None else f"; {distances['mean_relative']:.2f} of the total variance"
    return f"{when} adaptation: mean {distances['mean']:.3g}{relative}"
