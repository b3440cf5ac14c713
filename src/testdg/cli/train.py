"""`testdg train`: a source model for a benchmark, trained on its clean images."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.bar import Bar
from testdg.cli.quiet import quieten
from testdg.data.benchmarks import load_benchmark
from testdg.data.benchmarks.registry import find_benchmark
from testdg.evaluation.fine_tune import fine_tune
from testdg.models.segformer import SEGFORMERS
from testdg.training.recipe import make_recipe


@dataclass(frozen=True)
class TrainRequest:
    """What the user asked for."""

    benchmark: str
    data: Path | None
    model: str
    out: Path
    device: str
    recipe: dict[str, Any]
    """Values of the task's recipe; defaults apply to what is not there."""
    subset: str | None = None


def train_command(request: TrainRequest, *, as_json: bool) -> None:
    """Train the model and tell its score on clean images."""
    quieten([None if request.model in ("tiny", *SEGFORMERS) else request.model])
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with warnings.catch_warnings(), Bar(console) as bar:
        warnings.showwarning = lambda message, *_, **__: console.print(f"note   {message}", markup=False)
        about = _train(request, bar)
    if as_json:
        print(json.dumps(about, indent=2))
        return
    images = f"{about['test_images']} clean test images of {about['benchmark']}"
    console.print(f"model  {request.out} ({about['seconds']:.0f} s)", markup=False)
    key, title = ("clean_miou", "mIoU ") if "clean_miou" in about else ("clean_error", "error")
    console.print(f"{title}  {about[key]:.2f} % on {images}", markup=False)


def _train(request: TrainRequest, bar: Bar) -> dict[str, Any]:
    def tell(done: int, steps: int, loss: float, error: float) -> None:
        bar.update(f"step {done} of {steps}, loss {loss:.3f}, error {error:.1f} %", done, steps)

    recipe = make_recipe(find_benchmark(request.benchmark).task, request.recipe)
    benchmark = load_benchmark(request.benchmark, request.data, subset=request.subset)
    return fine_tune(benchmark, request.model, request.out, recipe, device=request.device, tell=tell)
