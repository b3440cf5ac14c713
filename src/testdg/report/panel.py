"""The panel of a segmentation run: picture, prediction before and after, label, for every domain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.benchmarks import Benchmark
from testdg.data.segmentation.classes import IGNORED, default_palette
from testdg.models import VisionModel
from testdg.report.style import new_figure, write_figure
from testdg.runs.folder import load_adapted
from testdg.runs.scores import Segmentation

Colours = Sequence[tuple[int, int, int]]
_BLACK = (0, 0, 0)
_WIDTH = 3.0  # inches of a picture


class Sample(NamedTuple):
    """A picture of a domain, (3, H, W) in [0, 1]; label and predictions are maps of class numbers, (H, W)."""

    domain: str
    image: Tensor
    label: Tensor
    before: Tensor
    after: Tensor


def take_samples(folder: Path, benchmark: Benchmark, model: VisionModel) -> list[Sample]:
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
        samples.append(Sample(domain.name, images[0], labels[0], before, after))
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
    samples: Sequence[Sample],
    titles: Sequence[str],
    classes: Sequence[str],
    palette: Colours = (),
    title: str = "",
    note: str = "",
) -> Path:
    """Draw a row of four pictures per sample, under `titles` for the two predictions, and write a PNG."""
    names, colours = [*classes], [*(palette or default_palette(len(classes)))]
    height, width = samples[0].label.shape

    def draw() -> Any:
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


def _draw_sample(row: Any, sample: Sample, colours: Colours) -> None:
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


def _add_legend(figure: Any, classes: Sequence[str], colours: Colours, note: str) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(color=(red / 255, green / 255, blue / 255), label=name)
        for name, (red, green, blue) in zip(classes, colours, strict=True)
    ]
    look: dict[str, Any] = {"frameon": False, "fontsize": 8, "title_fontsize": 8, "alignment": "left"}
    columns = -(-len(classes) // -(-len(classes) // 10))  # as few rows of at most ten as possible, equally long
    figure.legend(handles=patches, loc="outside lower left", ncols=columns, title=note, **look)
