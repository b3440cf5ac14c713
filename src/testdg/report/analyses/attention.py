"""Draw attention maps over images."""

from typing import Any

import numpy as np

from testdg.report.style import label_figure, new_figure


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """A column for each domain: the image, and the maps of each model laid over it."""
    rows, names = numbers["rows"], list(numbers["rows"][0]["maps"])
    figure, grid = new_figure(1.9 * len(rows) + 0.9, 1.95 * (1 + len(names)) + 1.0, 1 + len(names), len(rows))
    top = max(np.max(row["maps"][name]) for row in rows for name in names)
    for column, row in zip(grid.T, rows, strict=True):
        image = np.moveaxis(np.array(row["image"], np.uint8), 0, 2)
        height, width = image.shape[:2]
        column[0].set_title(row["domain"].replace("_", " "), fontsize=8)
        for axes in column:
            axes.imshow(image, extent=(0, width, height, 0))
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, name in zip(column[1:], names, strict=True):
            look = {"cmap": "inferno", "vmin": 0, "vmax": top, "alpha": 0.65, "interpolation": "nearest"}
            shown = axes.imshow(np.array(row["maps"][name]), extent=(0, width, height, 0), **look)
            entropy = f"entropy {row['entropy'][name]:.2f} ± {row['entropy_error'][name]:.2f}"
            axes.set_xlabel(entropy, fontsize=7)
    for axes, name in zip(grid[:, 0], ("image", *names), strict=True):
        axes.set_ylabel(name, fontsize=8)
    figure.colorbar(shown, ax=grid[1:, :], label="share of attention", shrink=0.7)
    label_figure(
        figure, title, f"{note}; entropy in nats, mean over images; {numbers['uniform_entropy']:.2f} if uniform"
    )
    return figure
