"""Draw how far prototypes are from where their images are now."""

from typing import Any

import numpy as np

from testdg.report.style import GREY, PALETTE, label_figure, new_figure


def draw(numbers: dict[str, Any], title: str, note: str) -> Any:
    """Along the stream on the left; means over all batches on the right."""
    figure, grid = new_figure(10, 3.8, 1, 2, width_ratios=[4, 1])
    axes, bars = grid[0]
    for number, (kind, colour) in enumerate(zip(("original", "updated"), PALETTE, strict=False)):
        values = np.array(numbers[kind])
        axes.plot(numbers["positions"], values, color=colour, linewidth=1.3, label=f"target to {kind} prototypes")
        quartiles = np.abs(np.quantile(values, [0.25, 0.75]) - values.mean())[:, None]
        bars.bar(number, values.mean(), color=colour, width=0.6)
        bars.errorbar(number, values.mean(), quartiles, color="#333333", capsize=3, linewidth=1)
    for change in numbers["changes"]:
        axes.axvline(
            change, color=GREY, linewidth=0.8, label="change detected" if change == numbers["changes"][0] else None
        )
    axes.set(xlabel="images seen", ylabel="squared MMD", ylim=(0, None))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    axes.grid(axis="y")
    bars.set_xticks([0, 1], ["original", "updated"])
    bars.set_title("mean over batches\n(bars: quartiles)", fontsize=8)
    bars.set_ylabel("squared MMD")
    label_figure(figure, title, note)
    return figure
