"""Draw the embeddings of all domains in two dimensions."""

from typing import Any

import numpy as np

from testdg.report.style import label_figure, new_figure, point_styles


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """A point for each image, before on the left and after on the right."""
    figure, grid = new_figure(10.5, 5.0, 1, 2)
    labels = np.array(numbers["labels"])
    for axes, when in zip(grid[0], ("before", "after"), strict=True):
        points = np.array(numbers[when]["points"])
        for number, (colour, marker) in enumerate(point_styles(len(numbers["domains"]))):
            mine, name = points[labels == number], numbers["domains"][number].replace("_", " ")
            style = {"s": 14, "color": colour, "marker": marker, "alpha": 0.75, "linewidths": 0}
            axes.scatter(mine[:, 0], mine[:, 1], label=name, **style)
        apart = numbers[when]["silhouette"]
        heading = f"{when} adaptation" + ("" if apart is None else f": silhouette of the domains {apart:+.2f}")
        axes.set_title(heading, loc="left")
        axes.set(xticks=[], yticks=[], xlabel="t-SNE, first axis", ylabel="t-SNE, second axis")
        axes.set_aspect("equal", adjustable="datalim")  # both panels are equally large
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center", markerscale=1.6)
    label_figure(figure, title, note)
    return figure
