"""Figures with pictures: the panel of a segmentation run, and the summary of a stream of the user's own pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.benchmarks import Benchmark
from testdg.data.segmentation.classes import IGNORED, default_palette
from testdg.errors import visible
from testdg.models import VisionModel
from testdg.report.style import GREY, PALETTE, SOURCE, new_figure, shortened, write_figure
from testdg.runs.folder import load_adapted
from testdg.runs.scores import Segmentation
from testdg.runs.summary import Bin, Sample, StreamStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colours = Sequence[tuple[int, int, int]]
_BLACK = (0, 0, 0)
_WIDTH = 3.0  # inches of a picture in a panel
_STREAM_WIDTH = 10.0  # inches
_SAMPLES_IN_ROW = {False: 6, True: 3}  # of pictures, and of pictures with two maps next to them
_CLASSES = 8
_POINTS = 60  # of a curve: more would show single batches


class PanelRow(NamedTuple):
    """A picture of a domain, (3, H, W) in [0, 1]; label and predictions are maps of class numbers, (H, W)."""

    domain: str
    image: Tensor
    label: Tensor
    before: Tensor
    after: Tensor


def take_samples(folder: Path, benchmark: Benchmark, model: VisionModel) -> list[PanelRow]:
    """One picture of every domain (of the first the first, of the second the second, and so on).

    `after` is the prediction of the adapter as the run in `folder` left it, at the end of the stream.
    """
    adapter = load_adapted(folder, model)
    samples = []
    for place, domain in enumerate(benchmark.domains()):
        images, labels = domain.take([place % len(domain)])
        with torch.no_grad():
            source = model(model.prepare(images.to(model.device))).logits
        before, after = (_classes(logits, labels) for logits in (source, adapter.predict(images)))
        samples.append(PanelRow(domain.name, images[0], labels[0], before, after))
    return samples


def _classes(logits: Tensor, labels: Tensor) -> Tensor:
    """The predicted class of every pixel, at the size of the label map."""
    sized = F.interpolate(logits.float(), labels.shape[1:], mode="bilinear", align_corners=False)
    return sized[0].argmax(0).cpu()


def picture_miou(prediction: Tensor, label: Tensor, classes: int) -> float | None:
    """MIoU of one picture, in percent; None where no pixel has a class."""
    logits = F.one_hot(prediction.long(), classes).permute(2, 0, 1)[None].float()
    score = Segmentation()
    counts = score.rows(logits, label[None], torch.zeros(1)).sum(0)
    found: float | None = score.metrics(counts.double().numpy(), 1)["miou"]
    return found


def draw_panel(
    path: Path,
    samples: Sequence[PanelRow],
    titles: Sequence[str],
    classes: Sequence[str],
    palette: Colours = (),
    title: str = "",
    note: str = "",
) -> Path:
    """Draw a row of four pictures per sample, under `titles` for the two predictions, and write a PNG."""
    names, colours = [*classes], [*(palette or default_palette(len(classes)))]
    height, width = samples[0].label.shape

    def draw() -> Figure:
        figure, grid = new_figure(4 * _WIDTH, len(samples) * 0.96 * _WIDTH * height / width + 1.0, len(samples), 4)
        for axes, heading in zip(grid[0], ("picture", *titles, "label"), strict=True):
            axes.set_title(heading, fontsize=10)
        for row, sample in zip(grid, samples, strict=True):
            _draw_sample(row, sample, colours)
        ignored = any((sample.label == IGNORED).any() for sample in samples)
        _add_legend(figure, names + ["ignored"] * ignored, colours + [_BLACK] * ignored, note)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        return figure

    return write_figure(draw, path)


def _draw_sample(row: Any, sample: PanelRow, colours: Colours) -> None:
    image = sample.image.permute(1, 2, 0).numpy()
    row[0].imshow(image)
    row[0].set_ylabel(sample.domain, fontsize=10)
    maps = (sample.before, sample.after, sample.label)
    for axes, values in zip(row[1:], maps, strict=True):
        axes.imshow(paint(values.numpy(), colours), interpolation="nearest")
    for axes, values in zip(row[1:3], maps, strict=False):
        if (score := picture_miou(values, sample.label, len(colours))) is not None:
            box = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 2}
            axes.text(0.98, 0.05, f"mIoU {score:.0f} %", transform=axes.transAxes, ha="right", fontsize=8, bbox=box)
    for axes in row:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)


def paint(values: Any, colours: Colours) -> Any:
    """Class numbers, (H, W), as a picture, (H, W, 3); what is ignored is black."""
    table = np.zeros((256, 3), np.uint8)
    table[: len(colours)] = colours
    table[IGNORED] = _BLACK
    return table[values]


def _add_legend(figure: Figure, classes: Sequence[str], colours: Colours, note: str) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(color=(red / 255, green / 255, blue / 255), label=name)
        for name, (red, green, blue) in zip(classes, colours, strict=True)
    ]
    look: dict[str, Any] = {"frameon": False, "fontsize": 8, "title_fontsize": 8, "alignment": "left"}
    columns = -(-len(classes) // -(-len(classes) // 10))  # as few rows of at most ten as possible, equally long
    figure.legend(handles=patches, loc="outside lower left", ncols=columns, title=note, **look)


# A stream of the user's own pictures


def draw_summary(path: Path, statistics: StreamStatistics, samples: Sequence[Sample], title: str, model: str) -> Path:
    """Draw what a stream amounts to, and write it in the format of the suffix."""
    return write_figure(lambda: _figure(statistics, samples, visible(title), visible(model)), path)


def _figure(statistics: StreamStatistics, samples: Sequence[Sample], title: str, model: str) -> Figure:
    from matplotlib.figure import Figure

    columns = _SAMPLES_IN_ROW[any(sample.strip for sample in samples)]
    rows = -(-len(samples) // columns)
    tallest = max((sample.picture.shape[0] / sample.picture.shape[1] for sample in samples), default=1.0)
    heights = [4.0, *([rows * (0.95 * min(1.0, tallest) * _STREAM_WIDTH / columns + 0.4) + 0.3] if rows else [])]
    figure = Figure(figsize=(_STREAM_WIDTH, sum(heights) + 0.4), layout="constrained", dpi=130)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    places = parts[0].add_gridspec(2, 2, width_ratios=(2, 1))
    upper = parts[0].add_subplot(places[0, 0])
    lower = parts[0].add_subplot(places[1, 0], sharex=upper)
    _draw_curves(upper, lower, statistics)
    _draw_classes(parts[0].add_subplot(places[:, 1]), statistics)
    if rows:
        _draw_shown(parts[1], samples, rows, columns)
    skipped = f", {statistics.skipped} left out" if statistics.skipped else ""
    figure.suptitle(
        f"{title}: {statistics.all.count} pictures{skipped}", x=0.01, ha="left", fontweight="bold", fontsize=10
    )
    figure.supxlabel(f"model {model}", x=0.01, ha="left", fontsize=7, color="#555555")
    return figure


def _draw_curves(upper: Axes, lower: Axes, statistics: StreamStatistics) -> None:
    bins = _thinned(statistics.bins)
    places, seen = [], 0
    for one in bins:
        places.append(seen + one.count / 2)
        seen += one.count
    dots: dict[str, Any] = {"marker": "o", "markersize": 2.5} if len(bins) < 3 else {}
    for name, label, colour in (("source_confidence", "source", SOURCE), ("confidence", "adapted", PALETTE[0])):
        upper.plot(places, [one.mean(name) for one in bins], color=colour, label=label, linewidth=1.2, **dots)
    upper.set(ylabel="confidence", ylim=(0, 1.02), title="Confidence, and changes that were noticed")
    upper.tick_params(labelbottom=False)
    lower.plot(places, [100 * one.mean("differs") for one in bins], color=PALETTE[1], linewidth=1.2, **dots)
    lower.set(
        xlabel="picture", ylabel="changed, %", title="Predictions that adaptation changed", xlim=(0, max(1, seen))
    )
    lower.set_ylim(bottom=0)
    for place in statistics.changed_at:
        for axes in (upper, lower):
            axes.axvline(place, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    if statistics.changed_at:
        upper.plot([], [], color=GREY, linewidth=0.8, linestyle=":", label=f"change ({statistics.changes})")
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


def _draw_classes(axes: Axes, statistics: StreamStatistics) -> None:
    both = statistics.classes + statistics.source_classes
    names = [name for name, _ in both.most_common(_CLASSES)][::-1]
    series = ((statistics.classes, "adapted", PALETTE[0], -0.2), (statistics.source_classes, "source", SOURCE, 0.2))
    for counts, label, colour, shift in series:
        shares = [100 * counts[name] / statistics.all.count for name in names]
        axes.barh([place + shift for place in range(len(names))], shares, 0.38, color=colour, label=label)
    axes.set_yticks(range(len(names)), [shortened(visible(name), 22) for name in names])
    more = len(both) - len(names)
    axes.set(xlabel="% of pictures", title="Most frequent classes" + (f" (of {len(both)})" if more else ""))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="lower right")


def _draw_shown(part: Any, samples: Sequence[Sample], rows: int, columns: int) -> None:
    grid = part.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, sample in zip(grid.flat, samples, strict=False):
        axes.imshow(sample.picture)
        axes.set_title(_change(sample), fontsize=7.5, color=PALETTE[0] if sample.differs else GREY, loc="left")
    order = "picture, the source's prediction, the adapted one"
    if not any(sample.strip for sample in samples):
        order = "the source's prediction \u2192 the adapted one"
    part.suptitle(f"Samples: {order}", x=0.01, ha="left", fontsize=9)


def _change(sample: Sample) -> str:
    if sample.strip:
        return f"{100 * sample.differs:.0f} % of the pixels changed"
    changed = f"\u2192 {shortened(visible(sample.after), 22)}" if sample.differs else "unchanged"
    return f"{shortened(visible(sample.before), 24)}\n{changed}"
