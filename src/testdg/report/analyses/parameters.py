"""Draw learnable parameters against the error."""

from typing import Any

from testdg.report.analyses.scatter import draw_methods
from testdg.report.style import GREY, label_figure, new_figure


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """A point for each method; a line marks the size of the whole model."""
    figure, grid = new_figure(6.6, 4.2)
    axes = grid[0, 0]
    draw_methods(axes, numbers["rows"], "parameters", "learnable parameters (the method's own included)")
    axes.axvline(numbers["model_parameters"], color=GREY, linestyle=":", linewidth=1.2, label="the whole model")
    axes.set_ylabel(numbers["metric"]["title"])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    label_figure(figure, title, note)
    return figure
