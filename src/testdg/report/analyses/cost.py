"""Draw time and memory of a batch against the error."""

from typing import Any

from testdg.report.analyses.scatter import draw_methods
from testdg.report.style import label_figure, new_figure


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """Time on the left, memory on the right; to the left is cheaper."""
    figure, grid = new_figure(10, 4.2, 1, 2, sharey=True)
    time, memory = grid[0]
    on = f"{numbers['device']}, threads: {numbers['threads']}" if numbers["device"] == "cpu" else numbers["device"]
    draw_methods(time, numbers["rows"], "ms", f"time of a batch of {numbers['batch_size']}, ms ({on}; bars: quartiles)")
    draw_methods(memory, numbers["rows"], "memory_mib", f"memory, MiB ({numbers['memory']})")
    time.set_ylabel(numbers["metric"]["title"])
    figure.legend(*time.get_legend_handles_labels(), loc="outside right center")
    label_figure(figure, title, note)
    return figure
