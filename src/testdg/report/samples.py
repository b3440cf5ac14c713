"""What a segmentation run did to a few pictures: the source's prediction and the adapted model's, beside the label."""

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.data.benchmarks import Benchmark
from testdg.models import VisionModel
from testdg.runs.folder import load_adapted
from testdg.runs.scores import Segmentation


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
