"""`testdg train`: a source model for a benchmark, trained on its clean images."""

import json
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.screen import Bar, quieten
from testdg.data.benchmarks import find_benchmark, load_benchmark
from testdg.models.segformer import SEGFORMERS
from testdg.runs.training.fine_tune import fine_tune
from testdg.runs.training.recipe import make_recipe


def train_command(
    benchmark: str, model: str, out: Path, values: dict[str, Any], *, as_json: bool, device: str, **options: Any
) -> None:
    """Train the model and tell its score on clean images; of the recipe, defaults apply to what is not there."""
    quieten([None if model in ("tiny", *SEGFORMERS) else model])
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def notify(done: int, steps: int, loss: float, error: float) -> None:
        bar.update(f"step {done} of {steps}, loss {loss:.3f}, error {error:.1f} %", done, steps)

    with warnings.catch_warnings(), Bar(console) as bar:
        warnings.showwarning = lambda message, *_, **__: console.print(f"note   {message}", markup=False)
        recipe = make_recipe(find_benchmark(benchmark).task, values)
        about = fine_tune(load_benchmark(benchmark, **options), model, out, recipe, device=device, on_progress=notify)
    if as_json:
        print(json.dumps(about, indent=2))
        return
    images = f"{about['test_images']} clean test images of {about['benchmark']}"
    console.print(f"model  {out} ({about['seconds']:.0f} s)", markup=False)
    key, title = ("clean_miou", "mIoU ") if "clean_miou" in about else ("clean_error", "error")
    console.print(f"{title}  {about[key]:.2f} % on {images}", markup=False)
