"""The source model of a run: the one that the user names, or the benchmark's own, trained once and kept."""

from __future__ import annotations

from pathlib import Path

import torch

from testdg.data.benchmarks import Benchmark
from testdg.errors import UserError
from testdg.evaluation.observer import Observer
from testdg.evaluation.training import Recipe, trained_model
from testdg.models import VisionModel, load_model


def source_model(
    benchmark: Benchmark,
    model: str | Path | torch.nn.Module | None = None,
    *,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
) -> VisionModel:
    """Load the model to adapt and check that it fits the benchmark."""
    if model is not None:
        found = load_model(model)
    elif benchmark.embedded:
        found = trained_model(benchmark, Recipe(), (observer or Observer()).training)
    else:
        raise UserError(f"{benchmark.name} has no model of its own: name one with --model (a folder or a hub id)")
    if found.task != benchmark.task:
        raise UserError(f"model {found.name} is for {found.task}; {benchmark.name} is for {benchmark.task}")
    if found.classes != len(benchmark.classes):
        classes = len(benchmark.classes)
        raise UserError(f"model {found.name} tells {found.classes} classes apart; {benchmark.name} has {classes}")
    return found.to(device)
