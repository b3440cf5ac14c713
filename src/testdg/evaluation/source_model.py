"""The source model of a run: the one that the user names, or the benchmark's own, trained once and kept."""

from pathlib import Path

import torch

from testdg.data.benchmarks import Benchmark
from testdg.errors import UserError, unknown
from testdg.evaluation.observer import Observer
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.training.embedded import default_recipe, trained_model


def source_model(
    benchmark: Benchmark,
    model: str | Path | torch.nn.Module | None = None,
    *,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
    preprocessing: str = "model",
) -> VisionModel:
    """Load the model to adapt, and check that it fits the benchmark.

    Args:
        benchmark: What `load_benchmark` gives.
        model: Whatever `load_model` takes; left out, the model of an embedded benchmark, trained once and kept.
        device: Where it should lie.
        observer: Hears how the training goes.
        preprocessing: "model" for the model's own, "paper" for that of the published tables.

    Examples:
        >>> import testdg
        >>> from testdg.evaluation import source_model
        >>> model = source_model(testdg.load_benchmark("digits-c"))
        >>> model.classes, model.preprocessing.size
        (10, (32, 32))
    """
    if preprocessing not in ("model", "paper"):
        raise unknown("preprocessing", preprocessing, ("model", "paper"))
    if preprocessing == "paper" and not benchmark.paper:
        raise UserError(f"the paper has no {benchmark.name}: leave out --preprocessing paper")
    wanted = Preprocessing(**benchmark.paper) if preprocessing == "paper" else None
    if model is not None:
        chosen = load_model(model, preprocessing=wanted)
    elif benchmark.embedded:
        chosen = trained_model(benchmark, default_recipe(benchmark), (observer or Observer()).training)
    else:
        raise UserError(f"{benchmark.name} has no model of its own: name one with --model (a folder or a hub id)")
    if chosen.task != benchmark.task:
        raise UserError(f"model {chosen.name} is for {chosen.task}; {benchmark.name} is for {benchmark.task}")
    size = chosen.preprocessing.size or chosen.preprocessing.crop  # of pictures that it takes without resizing
    benchmark.adopt(size if size is None or isinstance(size, int) else max(size), chosen.class_names)
    if chosen.classes != len(benchmark.classes):
        classes = len(benchmark.classes)
        told = f"model {chosen.name} tells {chosen.classes} classes apart; {benchmark.name} has {classes}"
        raise UserError(f"{told}: name another model, or train it for them with testdg train")
    if wanted is not None and chosen.preprocessing != wanted:
        raise UserError(f"model {chosen.name} was loaded with its own preprocessing: give the paper's to load_model")
    return chosen.to(device)
