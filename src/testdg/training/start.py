"""The model that a training starts from: the user's, with other classes where need be, or random weights."""

import copy
from pathlib import Path

import torch

from testdg.data.benchmarks import Benchmark
from testdg.errors import UserError
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.models.alignment import detach
from testdg.models.segformer import SEGFORMERS, random_segformer
from testdg.models.transfer import with_classes, with_size


def starting_model(
    benchmark: Benchmark, model: str | Path | torch.nn.Module, size: int | None = None, seed: int = 0
) -> VisionModel:
    """Give a model to train for a benchmark: with a new classifier where classes differ, and for images of a size.

    "tiny" stands for a small vision transformer with random weights, or for a small SegFormer where every pixel has
    a class; "segformer-b0" to "segformer-b5" for SegFormers of these sizes with random weights.
    """
    if isinstance(model, str) and model in ("tiny", *SEGFORMERS):
        return _random(benchmark, model, size, seed)
    with torch.random.fork_rng(devices=[]):  # networks draw initial weights before they read their own
        start = copy.deepcopy(load_model(model))
    detach(start)  # statistics of a stream say nothing about other weights
    if start.task != benchmark.task:
        raise UserError(f"model {start.name} is for {start.task}; {benchmark.name} is for {benchmark.task}")
    if start.classes != len(benchmark.classes):
        start = with_classes(start, benchmark.classes, seed)
    return start if size is None else with_size(start, size)


def _random(benchmark: Benchmark, name: str, size: int | None, seed: int) -> VisionModel:
    """A model with random weights, for the task of the benchmark."""
    if benchmark.task == "segmentation":
        return random_segformer(name, benchmark.classes, seed)
    if name != "tiny":
        raise UserError(f"model {name} is for segmentation; {benchmark.name} is for {benchmark.task}")
    side = size or 32
    if side % 4:
        raise UserError(f"the tiny model takes images whose side is a multiple of 4; got {side}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TinyViT(len(benchmark.classes), side)
    return VisionModel(network, "head", Preprocessing((side, side), mean=(0.5,) * 3, std=(0.5,) * 3), "tiny")
