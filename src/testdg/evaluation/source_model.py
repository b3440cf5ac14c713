"""The source model of a run: the one that the user names, or the benchmark's own, trained once and kept."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from testdg.data.benchmarks import Benchmark
from testdg.errors import UserError, unknown
from testdg.evaluation.observer import Observer
from testdg.evaluation.training import default_recipe, trained_model
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.models.alignment import detach
from testdg.models.architectures import architecture_name
from testdg.models.segformer import SEGFORMERS, random_segformer
from testdg.models.transfer import with_classes, with_size


def source_model(
    benchmark: Benchmark,
    model: str | Path | torch.nn.Module | None = None,
    *,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
    preprocessing: str = "model",
) -> VisionModel:
    """Load the model to adapt, with its own preprocessing or the "paper"'s, and check that it fits the benchmark."""
    if preprocessing not in ("model", "paper"):
        raise unknown("preprocessing", preprocessing, ("model", "paper"))
    if preprocessing == "paper" and not benchmark.paper:
        raise UserError(f"the paper has no {benchmark.name}: leave out --preprocessing paper")
    wanted = Preprocessing(**benchmark.paper) if preprocessing == "paper" else None
    if model is not None:
        found = load_model(model, preprocessing=wanted)
    elif benchmark.embedded:
        found = trained_model(benchmark, default_recipe(benchmark), (observer or Observer()).training)
    else:
        raise UserError(f"{benchmark.name} has no model of its own: name one with --model (a folder or a hub id)")
    if found.task != benchmark.task:
        raise UserError(f"model {found.name} is for {found.task}; {benchmark.name} is for {benchmark.task}")
    if found.classes != len(benchmark.classes):
        classes = len(benchmark.classes)
        told = f"model {found.name} tells {found.classes} classes apart; {benchmark.name} has {classes}"
        raise UserError(f"{told}: name another model, or train it for them with testdg train")
    if wanted is not None and found.preprocessing != wanted:
        raise UserError(f"model {found.name} was loaded with its own preprocessing: give the paper's to load_model")
    return found.to(device)


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
        found = copy.deepcopy(load_model(model))
    detach(found)  # statistics of a stream say nothing about other weights
    if found.task != benchmark.task:
        raise UserError(f"model {found.name} is for {found.task}; {benchmark.name} is for {benchmark.task}")
    if not hasattr(found.network, "save_pretrained") and architecture_name(found.network) is None:
        remedy = "use a model of transformers, or one of this package"
        raise UserError(f"model {found.name} cannot be written as a folder that is read back: {remedy}")
    if found.classes != len(benchmark.classes):
        found = with_classes(found, benchmark.classes, seed)
    return found if size is None else with_size(found, size)


def _random(benchmark: Benchmark, name: str, size: int | None, seed: int) -> VisionModel:
    """A model with random weights, for the task of the benchmark."""
    if benchmark.task == "segmentation":
        return random_segformer(name, benchmark.classes, seed)
    if name != "tiny":
        raise UserError(f"model {name} is for segmentation; {benchmark.name} is for {benchmark.task}")
    return _tiny(len(benchmark.classes), size or 32, seed)


def _tiny(classes: int, size: int, seed: int) -> VisionModel:
    if size % 4:
        raise UserError(f"the tiny model takes images whose side is a multiple of 4; got {size}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TinyViT(classes, size)
    return VisionModel(network, "head", Preprocessing((size, size), mean=(0.5,) * 3, std=(0.5,) * 3), "tiny")
