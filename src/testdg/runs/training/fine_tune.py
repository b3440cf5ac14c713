"""`fine_tune`: a source model for a benchmark, trained on its clean images, resumable."""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.core.fitting import fit
from testdg.core.learner import load_moments, moments
from testdg.core.state import below
from testdg.data.benchmarks import Benchmark
from testdg.data.benchmarks.base import fingerprint
from testdg.data.stream import LabelledImages, to_float
from testdg.errors import UserError
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.models.alignment import detach
from testdg.models.loading import find_device
from testdg.models.segformer import SEGFORMERS, random_segformer
from testdg.models.transfer import with_classes, with_size
from testdg.runs.loop import SAVE_EVERY
from testdg.runs.scores import find_score
from testdg.runs.training.folder import TrainingFolder
from testdg.runs.training.losses import share_wrong
from testdg.runs.training.recipe import ClassTuning, TuningRecipe, make_recipe
from testdg.version import versions

_TEST_BATCH = {"classification": 200, "segmentation": 8}
_REPORT_EVERY = 20  # steps whose scalars come to the host together
_CLIP = 1.0  # norm of the gradient

OnProgress = Callable[[int, int, float, float], None]
"""Called with the steps that are done, all steps, and the mean loss and the error in percent since the last call."""


def fine_tune(
    benchmark: Benchmark,
    model: str | Path | nn.Module,
    out: str | Path,
    recipe: TuningRecipe | None = None,
    *,
    device: str = "auto",
    on_progress: OnProgress | None = None,
    save_every: float = SAVE_EVERY,
) -> dict[str, Any]:
    """Train a model on a benchmark's clean images; returns the content of `training.json` in the new folder.

    A training that was stopped resumes with the same call, and a complete folder of the same training is read back.

    Args:
        benchmark: A benchmark, from `load_benchmark`.
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
        seconds = FineTuning(start, train, recipe, folder, on_progress or (lambda *_: None), save_every).run()
        scores = clean_scores(start, test, benchmark.classes)
        outcome = {"test_images": len(test), **scores, "seconds": round(seconds, 1), "device": place.type}
        return folder.finish(start, {**about, **outcome, "versions": versions()})


def starting_model(
    benchmark: Benchmark, model: str | Path | nn.Module, size: int | None = None, seed: int = 0
) -> VisionModel:
    """A model to train for a benchmark: with a new classifier where classes differ, and for images of a size.

    "tiny" stands for a small vision transformer with random weights, or for a small SegFormer where every pixel has
    a class; "segformer-b0" to "segformer-b5" for SegFormers of these sizes with random weights.
    """
    if isinstance(model, str) and model in ("tiny", *SEGFORMERS):
        return _random_model(benchmark, model, size, seed)
    with torch.random.fork_rng(devices=[]):  # networks draw initial weights before they read their own
        start = copy.deepcopy(load_model(model))
    detach(start)  # statistics of a stream say nothing about other weights
    if start.task != benchmark.task:
        message = f"model {start.name} is for {start.task}; {benchmark.name} is for {benchmark.task}"
        raise UserError(message, code="wrong-task")
    if start.classes != len(benchmark.classes):
        start = with_classes(start, benchmark.classes, seed)
    return start if size is None else with_size(start, size)


def _random_model(benchmark: Benchmark, name: str, size: int | None, seed: int) -> VisionModel:
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
    preprocessing = Preprocessing((side, side), mean=(0.5,) * 3, std=(0.5,) * 3)
    return VisionModel(network, "head", preprocessing, "tiny")


@torch.inference_mode()
def clean_scores(model: VisionModel, samples: LabelledImages, classes: Sequence[str]) -> dict[str, Any]:
    """The error and, of maps, the mIoU in percent, in full precision; named as in `training.json`."""
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


class FineTuning:
    """One training, from whatever its folder holds to the last step; the recipe gives groups, views and the loss.

    All random numbers are keyed by the seed and the number of the step, so that a state needs no generators.
    """

    def __init__(
        self,
        model: VisionModel,
        samples: LabelledImages,
        recipe: TuningRecipe,
        folder: TrainingFolder,
        on_progress: OnProgress,
        save_every: float,
    ) -> None:
        self.model, self.recipe, self.folder, self.on_progress = model, recipe, folder, on_progress
        self.save_every, self.device = save_every, model.device
        self.samples = on_device_if_small(samples, self.device)
        self.batch_size = min(recipe.batch_size, len(samples))
        self.epoch = len(samples) // self.batch_size  # steps; a short last batch is left out
        self.steps = recipe.epochs * self.epoch
        self.optimizer = torch.optim.AdamW(recipe.groups(model), recipe.learning_rate)
        self.loss = recipe.loss(self.samples.labels, model.classes, self.device)
        self.scalars = torch.zeros(2, device=self.device)  # summed loss and share of errors since the last report

    def run(self) -> float:
        """Train to the end, leave the model in evaluation mode; returns the seconds that it took in all."""
        start = self._resume()
        self.reported, self.saved = start, time.monotonic()
        self.model.train()
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            batches = self._batches(start)
            fit(self._step, self.optimizer, batches, steps=self.steps, start=start, clip=_CLIP, after=self._after)
        self.model.eval()
        return time.monotonic() - self.begun

    def _resume(self) -> int:
        """Load the last saved state, if there is one; returns its number of steps."""
        self.begun = time.monotonic()
        if (found := self.folder.load()) is None:
            return 0
        tensors, note = found
        self.model.network.load_state_dict(below("model.", tensors))
        load_moments(self.optimizer, below("optimizer.", tensors))
        self.begun -= float(note["seconds"])
        return int(note["step"])

    def _batches(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Augmented images and labels of every step; each epoch has its own order."""
        images, labels, generator = self.samples.images, self.samples.labels, torch.Generator(self.device)
        for number in range(start, self.steps):
            epoch, place = divmod(number, self.epoch)
            if place == 0 or number == start:
                keyed = torch.Generator().manual_seed(self._key("order", epoch))
                order = torch.randperm(len(labels), generator=keyed).to(labels.device)
            chosen = order[place * self.batch_size : (place + 1) * self.batch_size]
            torch.manual_seed(self._key("network", number))  # dropout draws from the global generator
            generator.manual_seed(self._key("view", number))
            batch = to_float(images[chosen].to(self.device))
            yield self.recipe.view(batch, labels[chosen].to(self.device), generator)

    def _key(self, what: str, number: int) -> int:
        digest = hashlib.blake2b(f"{self.recipe.seed}/{what}/{number}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "little")

    def _step(self, images: Tensor, labels: Tensor) -> Tensor:
        prepared = self.model.prepare(images)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            logits = self.model(prepared).logits
        logits = logits.float()
        if logits.shape[2:] != labels.shape[1:]:  # label maps, and a model that resizes its input
            logits = F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=False)
        loss = self.loss(logits, labels)
        self.scalars += torch.stack([loss.detach(), share_wrong(logits, labels)])
        return loss

    def _after(self, done: int, loss: Tensor) -> None:
        """Report and save, if it is time."""
        late = time.monotonic() - self.saved >= self.save_every
        if late or done % _REPORT_EVERY == 0 or done == self.steps:
            self._report(done)
        if late and done < self.steps:
            weights = {f"model.{name}": value for name, value in self.model.network.state_dict().items()}
            moved = {f"optimizer.{name}": value for name, value in moments(self.optimizer).items()}
            self.folder.save({**weights, **moved}, done, time.monotonic() - self.begun)
            self.saved = time.monotonic()

    def _report(self, done: int) -> None:
        """Bring the scalars to the host; a loss that is not finite ends the training before it is saved."""
        loss, errors = (self.scalars / (done - self.reported)).tolist()
        if not math.isfinite(loss):
            rate = self.recipe.learning_rate
            message = f"the loss is {loss} after {done} steps: choose a smaller --learning-rate than {rate}"
            raise UserError(message, code="diverged")
        self.on_progress(done, self.steps, loss, 100 * errors)
        self.reported = done
        self.scalars.zero_()


def on_device_if_small(samples: LabelledImages, device: torch.device) -> LabelledImages:
    """Move all images to the graphics card if they take less than a quarter of what is free there."""
    if device.type != "cuda":
        return samples
    images, labels = samples.images, samples.labels
    fits = 4 * (images.nbytes + labels.nbytes) < torch.cuda.mem_get_info(device)[0]
    return LabelledImages(images.to(device), labels.to(device)) if fits else samples
