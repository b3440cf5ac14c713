"""The figure of a stream: confidence and changes over time, classes before and after, and some of the pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testdg.errors import visible
from testdg.report.style import GREY, PALETTE, SOURCE, write_figure
from testdg.runs.samples import Sample
from testdg.runs.tally import Bin, Tally

_WIDTH = 10.0  # inches
_COLUMNS = {False: 6, True: 3}  # of pictures, and of pictures with two maps beside them
_CLASSES = 8
_POINTS = 60  # of a curve: more would show single batches


def draw_summary(path: Path, tally: Tally, samples: Sequence[Sample], title: str, model: str) -> Path:
    """Draw what a stream amounts to, and write it in the format of the suffix."""
    return write_figure(lambda: _figure(tally, samples, visible(title), visible(model)), path)


def _figure(tally: Tally, samples: Sequence[Sample], title: str, model: str) -> Any:
    from matplotlib.figure import Figure

    columns = _COLUMNS[any(sample.strip for sample in samples)]
    rows = -(-len(samples) // columns)
    tallest = max((sample.picture.shape[0] / sample.picture.shape[1] for sample in samples), default=1.0)
    heights = [4.0, *([rows * (0.95 * min(1.0, tallest) * _WIDTH / columns + 0.4) + 0.3] if rows else [])]
    figure = Figure(figsize=(_WIDTH, sum(heights) + 0.4), layout="constrained", dpi=130)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    places = parts[0].add_gridspec(2, 2, width_ratios=(2, 1))
    upper = parts[0].add_subplot(places[0, 0])
    lower = parts[0].add_subplot(places[1, 0], sharex=upper)
    _draw_curves(upper, lower, tally)
    _draw_classes(parts[0].add_subplot(places[:, 1]), tally)
    if rows:
        _draw_samples(parts[1], samples, rows, columns)
    skipped = f", {tally.skipped} left out" if tally.skipped else ""
    figure.suptitle(f"{title}: {tally.all.count} pictures{skipped}", x=0.01, ha="left", fontweight="bold", fontsize=10)
    figure.supxlabel(f"model {model}", x=0.01, ha="left", fontsize=7, color="#555555")
    return figure


def _draw_curves(upper: Any, lower: Any, tally: Tally) -> None:
    bins = _thinned(tally.bins)
    places, seen = [], 0
    for one in bins:
        places.append(seen + one.count / 2)
        seen += one.count
    dots = {"marker": "o", "markersize": 2.5} if len(bins) < 3 else {}
    for name, label, colour in (("source_confidence", "source", SOURCE), ("confidence", "adapted", PALETTE[0])):
        upper.plot(places, [one.mean(name) for one in bins], color=colour, label=label, linewidth=1.2, **dots)
    upper.set(ylabel="confidence", ylim=(0, 1.02), title="Confidence, and changes that were noticed")
    upper.tick_params(labelbottom=False)
    lower.plot(places, [100 * one.mean("differs") for one in bins], color=PALETTE[1], linewidth=1.2, **dots)
    lower.set(
        xlabel="picture", ylabel="changed, %", title="Predictions that adaptation changed", xlim=(0, max(1, seen))
    )
    lower.set_ylim(bottom=0)
    for place in tally.changed_at:
        for axes in (upper, lower):
            axes.axvline(place, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    if tally.changed_at:
        upper.plot([], [], color=GREY, linewidth=0.8, linestyle=":", label=f"change ({tally.changes})")
    upper.legend(loc="best", ncols=3)


def _thinned(bins: Sequence[Bin]) -> list[Bin]:
    """At most so many bins, those that follow each other put together."""
    width = -(-len(bins) // _POINTS) or 1
    found = []
    for start in range(0, len(bins), width):
        found.append(Bin())
        for one in bins[start : start + width]:
            found[-1].add(one)
    if len(found) > 1 and 2 * found[-1].count < found[0].count:  # a few pictures would be a spike
        last = found.pop()
        found[-1].add(last)
    return found


def _draw_classes(axes: Any, tally: Tally) -> None:
    both = tally.classes + tally.source_classes
    names = [name for name, _ in both.most_common(_CLASSES)][::-1]
    series = ((tally.classes, "adapted", PALETTE[0], -0.2), (tally.source_classes, "source", SOURCE, 0.2))
    for counts, label, colour, shift in series:
        shares = [100 * counts[name] / tally.all.count for name in names]
        axes.barh([place + shift for place in range(len(names))], shares, 0.38, color=colour, label=label)
    axes.set_yticks(range(len(names)), [_short(name, 22) for name in names])
    more = len(both) - len(names)
    axes.set(xlabel="% of pictures", title="Most frequent classes" + (f" (of {len(both)})" if more else ""))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="lower right")


def _draw_samples(part: Any, samples: Sequence[Sample], rows: int, columns: int) -> None:
    grid = part.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, sample in zip(grid.flat, samples, strict=False):
        axes.imshow(sample.picture)
        axes.set_title(_told(sample), fontsize=7.5, color=PALETTE[0] if sample.differs else GREY, loc="left")
    told = "picture, the source's prediction, the adapted one"
    if not any(sample.strip for sample in samples):
        told = "the source's prediction \u2192 the adapted one"
    part.suptitle(f"Samples: {told}", x=0.01, ha="left", fontsize=9)


def _told(sample: Sample) -> str:
    if sample.strip:
        return f"{100 * sample.differs:.0f} % of the pixels changed"
    changed = f"\u2192 {_short(sample.after, 22)}" if sample.differs else "unchanged"
    return f"{_short(sample.before, 24)}\n{changed}"


def _short(text: str, most: int) -> str:
    text = visible(text)
    return text if len(text) <= most else text[: most - 1] + "\u2026"
