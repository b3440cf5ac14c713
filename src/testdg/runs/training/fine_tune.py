"""`fine_tune`: a source model for a benchmark, trained on its clean images, resumable."""

import copy
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from testdg.data.benchmarks import Benchmark
from testdg.data.benchmarks.base import fingerprint
from testdg.data.stream import LabelledImages, to_float
from testdg.errors import UserError
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.models.alignment import detach
from testdg.models.loading import find_device
from testdg.models.segformer import SEGFORMERS, random_segformer
from testdg.models.transfer import with_classes, with_size
from testdg.runs.scores import find_score
from testdg.runs.training.folder import TrainingFolder
from testdg.runs.training.recipe import ClassTuning, Tuning, make_recipe
from testdg.runs.training.steps import OnProgress, Training
from testdg.version import versions

SAVE_EVERY = 60.0  # seconds between two saved states
_TEST_BATCH = {"classification": 200, "segmentation": 8}


def fine_tune(
    benchmark: Benchmark,
    model: str | Path | nn.Module,
    out: str | Path,
    recipe: Tuning | None = None,
    *,
    device: str = "auto",
    on_progress: OnProgress | None = None,
    save_every: float = SAVE_EVERY,
) -> dict[str, Any]:
    """Train a model on a benchmark's clean images and give what `training.json` in the new folder says.

    A training that was stopped resumes with the same call, and a complete folder of the same training is read back.

    Args:
        benchmark: What `load_benchmark` gives.
        model: The model to start from: whatever `load_model` takes.
        out: The folder of the new model. It appears when the model is complete; until then the state is in
            `<out>.training`.
        recipe: Rates, epochs, views and all else that the weights depend on; left out, the recipe of the task.
        device: Where the model runs.
        on_progress: Called with the progress of the training.
        save_every: Seconds between two saved states.
    """
    recipe, place = recipe or make_recipe(benchmark.task, {}), find_device(device)
    if recipe.task != benchmark.task:
        raise UserError(f"the recipe is for {recipe.task}; {benchmark.name} is for {benchmark.task}", code="wrong-task")
    train, test = benchmark.train().first(recipe.images), benchmark.test()
    size = recipe.image_size if isinstance(recipe, ClassTuning) else None
    start = starting_model(benchmark, model, size, recipe.seed).to(place)
    about = {
        "benchmark": benchmark.name,
        "model": start.name,
        "model_fingerprint": start.fingerprint(),
        "data_fingerprint": fingerprint([train.images, train.labels]),
        "training_images": len(train),
        "recipe": asdict(recipe),
    }
    folder = TrainingFolder(Path(out), about)
    if (found := folder.result()) is not None:
        return found
    with folder.lock():
        seconds = Training(start, train, recipe, folder, on_progress or (lambda *_: None), save_every).run()
        scores = clean_scores(start, test, benchmark.classes)
        outcome = {"test_images": len(test), **scores, "seconds": round(seconds, 1), "device": place.type}
        return folder.finish(start, {**about, **outcome, "versions": versions()})


def starting_model(
    benchmark: Benchmark, model: str | Path | nn.Module, size: int | None = None, seed: int = 0
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
        message = f"model {start.name} is for {start.task}; {benchmark.name} is for {benchmark.task}"
        raise UserError(message, code="wrong-task")
    if start.classes != len(benchmark.classes):
        start = with_classes(start, benchmark.classes, seed)
    return start if size is None else with_size(start, size)


def _random(benchmark: Benchmark, name: str, size: int | None, seed: int) -> VisionModel:
    """A model with random weights, for the task of the benchmark."""
    if benchmark.task == "segmentation":
        return random_segformer(name, benchmark.classes, seed)
    if name != "tiny":
        message = f"model {name} is for segmentation; {benchmark.name} is for {benchmark.task}"
        raise UserError(message, code="wrong-task")
    side = size or 32
    if side % 4:
        raise UserError(f"the tiny model takes images whose side is a multiple of 4; got {side}", code="image-size")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TinyViT(len(benchmark.classes), side)
    return VisionModel(network, "head", Preprocessing((side, side), mean=(0.5,) * 3, std=(0.5,) * 3), "tiny")


@torch.inference_mode()
def clean_scores(model: VisionModel, samples: LabelledImages, classes: Sequence[str]) -> dict[str, Any]:
    """The error and, of maps, the mIoU in percent, in full precision; named as `training.json` has them."""
    score, size = find_score(model.task), _TEST_BATCH[model.task]
    score.check(samples.labels, model.classes)
    total = torch.zeros((), device=model.device)
    for start in range(0, len(samples), size):
        images = to_float(samples.read(start, start + size).to(model.device))
        labels = samples.labels[start : start + size].to(model.device)
        none = torch.zeros(len(labels), dtype=torch.bool, device=model.device)  # no image counts as early
        total = total + score.rows(model(model.prepare(images)).logits, labels, none).sum(0)
    scores = score.metrics(total.double().cpu().numpy(), len(samples))
    if model.task == "classification":
        return {"clean_error": scores["error"]}
    named = dict(zip(classes, scores["class_iou"], strict=True))
    return {"clean_miou": scores["miou"], "clean_error": scores["error"], "clean_class_iou": named}
