"""Draw prototypes among the embeddings that they were chosen from."""

from typing import Any

import numpy as np

from testdg.report.style import GREY, PALETTE, label_figure, new_figure


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """A panel for each moment of selection."""
    selections = numbers["selections"]
    columns = min(2, len(selections))
    rows = -(-len(selections) // columns)
    figure, grid = new_figure(4.4 * columns, 4.0 * rows + 0.6, rows, columns)
    for axes in grid.flat[len(selections) :]:
        axes.set_visible(False)
    for axes, one in zip(grid.flat, selections, strict=False):
        points = np.array(one["points"])
        chosen = points[one["chosen"]]
        axes.scatter(
            points[:, 0], points[:, 1], s=16, color=GREY, alpha=0.7, linewidths=0, label="embedding in the queue"
        )
        axes.scatter(
            chosen[:, 0], chosen[:, 1], s=34, color=PALETTE[0], edgecolors="black", linewidths=0.6, label="prototype"
        )
        name, sizes = one["domain"].replace("_", " "), f"{len(chosen)} of {len(points)}"
        quality = f"MMD² {one['mmd2']:.2g}, drawn at random {one['mmd2_random']:.2g}"
        axes.set_title(f"after {name} (batch {one['batch']}): {sizes}\n{quality}", loc="left", fontsize=8)
        axes.set(xticks=[], yticks=[], xlabel="t-SNE, first axis", ylabel="t-SNE, second axis")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside right center")
    label_figure(figure, title, note)
    return figure
