"""A segmentation model on streets in changing weather: `python examples/segmentation_stream.py [IMAGES] [MODEL]`.

Without a model folder, a small SegFormer is trained once on clear scenes (a few minutes) and cached.
"""

import sys

import torch
from torch import Tensor

import testdg
from testdg.runs import source_model


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How many pixels of each class (rows) were taken for which (columns); 255 marks pixels without a class."""
    known = labels != 255
    pairs = labels[known].long() * classes + predicted[known]
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def mean_iou(matrix: Tensor) -> float:
    """The mean over classes of intersection over union, in percent."""
    matrix = matrix.double()
    union = matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
    return float(100 * (matrix.diagonal() / union)[union > 0].mean())


count = int([*sys.argv, 40][1])
benchmark = testdg.load_benchmark("streets", images=count)
model = testdg.load_model(sys.argv[2]) if len(sys.argv) > 2 else source_model(benchmark)
classes = len(benchmark.classes)
adapters = {name: testdg.adapt(model, name) for name in ("source", "tent")}
matrices = {name: torch.zeros(classes, classes, dtype=torch.long) for name in adapters}

stream = benchmark.stream(batch_size=4)
for batch in stream:  # images (4, 3, 96, 160) in [0, 1]
    for name, adapter in adapters.items():
        maps = adapter(batch.images).argmax(1)  # a class for every pixel: (4, 96, 160)
        matrices[name] += confusion(maps, batch.labels, classes)

for name, matrix in matrices.items():
    print(f"{name:<8} mIoU {mean_iou(matrix):.1f} %")
