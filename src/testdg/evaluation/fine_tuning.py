"""`fine_tune`: a source model for a benchmark, trained on its clean images, resumable."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.data.benchmarks import Benchmark
from testdg.data.benchmarks.base import fingerprint
from testdg.data.stream import Samples, to_float
from testdg.data.training_views import training_view
from testdg.errors import UserError
from testdg.evaluation.device import find_device
from testdg.evaluation.result import versions
from testdg.evaluation.source_model import starting_model
from testdg.evaluation.training_folder import TrainingFolder
from testdg.fitting import fit, load_moments, moments
from testdg.models import VisionModel

Tell = Callable[[int, int, float, float], None]
"""Hears the steps done and to do, and of the steps since the last time the mean loss and the error in percent."""

SAVE_EVERY = 60.0  # seconds between two saved states
_TELL_EVERY = 20  # steps whose scalars come to the host together
_CLIP = 1.0  # norm of the gradient
_TEST_BATCH = 200


@dataclass(frozen=True)
class FineTuning:
    """Everything that the trained weights depend on, besides the starting model and the images."""

    epochs: int = 5
    batch_size: int = 128
    learning_rate: float = 1e-4
    weight_decay: float = 0.05
    smoothing: float = 0.0
    image_size: int | None = None
    """Side of the images that reach the network; None for the model's own."""
    images: int | None = None
    """First training images; None for all."""
    flip: bool = True
    colour: float = 0.25
    precision: str = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "image_size", "images"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} must be at least 1; got {value}")
        for name, most in {"learning_rate": math.inf, "weight_decay": 1.0, "smoothing": 1.0, "colour": 1.0}.items():
            if not 0 <= getattr(self, name) <= most or not math.isfinite(getattr(self, name)):
                bound = "at least 0 and finite" if most == math.inf else "in [0, 1]"
                raise UserError(f"{name} must be {bound}; got {getattr(self, name)}")
        if self.precision not in ("fp32", "bf16"):
            raise UserError(f"precision must be fp32 or bf16; got {self.precision!r}")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed must be in [0, 4294967295]; got {self.seed}")


def fine_tune(
    benchmark: Benchmark,
    model: str | Path | nn.Module,
    out: str | Path,
    recipe: FineTuning | None = None,
    *,
    device: str = "auto",
    tell: Tell | None = None,
    save_every: float = SAVE_EVERY,
) -> dict[str, Any]:
    """Train a model on a benchmark's clean images and give what `training.json` in the new folder says.

    `out` appears when the model is complete; until then the state is in `<out>.training`, and the same call goes on
    from there. A complete folder of the same training is read back.
    """
    recipe, place = recipe or FineTuning(), find_device(device)
    train, test = benchmark.train().first(recipe.images), benchmark.test()
    start = starting_model(benchmark, model, recipe.image_size, recipe.seed).to(place)
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
    with folder.held():
        seconds = _Training(start, train, recipe, folder, tell or (lambda *_: None), save_every).run()
        error = clean_error(start, test)
        outcome = {"test_images": len(test), "clean_error": error, "seconds": round(seconds, 1), "device": place.type}
        return folder.finish(start, {**about, **outcome, "versions": versions()})


class _Training:
    """One training, from whatever its folder holds to the last step.

    All random numbers are keyed by the seed and the number of the step, so that a state needs no generators.
    """

    def __init__(
        self,
        model: VisionModel,
        samples: Samples,
        recipe: FineTuning,
        folder: TrainingFolder,
        tell: Tell,
        save_every: float,
    ) -> None:
        self.model, self.samples, self.recipe, self.folder = model, samples, recipe, folder
        self.tell, self.save_every, self.device = tell, save_every, model.device
        self.batch_size = min(recipe.batch_size, len(samples))
        self.epoch = len(samples) // self.batch_size  # steps; a short last batch is left out
        self.steps = recipe.epochs * self.epoch
        self.optimizer = torch.optim.AdamW(_groups(model, recipe.weight_decay), recipe.learning_rate)
        self.scalars = torch.zeros(2, device=self.device)  # summed loss, wrong answers; since they were told

    def run(self) -> float:
        """Train to the end, leave the model in evaluation mode, and give the seconds that it took in all."""
        start, self.seconds = self._resume()
        self.told, self.begun, self.saved = start, time.monotonic(), time.monotonic()
        self.model.train()
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            batches = self._batches(start)
            fit(self._loss, self.optimizer, batches, steps=self.steps, start=start, clip=_CLIP, after=self._after)
        self.model.eval()
        return self._elapsed()

    def _batches(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Augmented images and labels of every step; each epoch has its own order."""
        generator = torch.Generator(self.device)
        for number in range(start, self.steps):
            epoch, place = divmod(number, self.epoch)
            if place == 0 or number == start:
                order = torch.randperm(
                    len(self.samples), generator=torch.Generator().manual_seed(self._key("order", epoch))
                )
            chosen = order[place * self.batch_size : (place + 1) * self.batch_size]
            torch.manual_seed(self._key("network", number))  # dropout draws from the global generator
            generator.manual_seed(self._key("view", number))
            images = to_float(self.samples.images[chosen].to(self.device))
            view = training_view(images, generator, flip=self.recipe.flip, colour=self.recipe.colour)
            yield view, self.samples.labels[chosen].to(self.device)

    def _key(self, what: str, number: int) -> int:
        digest = hashlib.blake2b(f"{self.recipe.seed}/{what}/{number}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "little")

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        prepared = self.model.prepare(images)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            logits = self.model(prepared).logits
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.recipe.smoothing)
        self.scalars += torch.stack([loss.detach(), (logits.argmax(1) != labels).sum()])
        return loss

    def _after(self, done: int, loss: Tensor) -> None:
        due = time.monotonic() - self.saved >= self.save_every
        if due or done % _TELL_EVERY == 0 or done == self.steps:
            self._tell(done)
        if due and done < self.steps:
            weights = {f"model.{name}": value for name, value in self.model.network.state_dict().items()}
            remembered = {f"optimizer.{name}": value for name, value in moments(self.optimizer).items()}
            self.folder.save({**weights, **remembered}, done, self._elapsed())
            self.saved = time.monotonic()

    def _tell(self, done: int) -> None:
        """Bring the scalars to the host; a loss that is not finite ends the training before it is saved."""
        loss, wrong = (self.scalars / (done - self.told)).tolist()
        if not math.isfinite(loss):
            rate = self.recipe.learning_rate
            raise UserError(f"the loss is {loss} after {done} steps: choose a smaller --learning-rate than {rate}")
        self.tell(done, self.steps, loss, 100 * wrong / self.batch_size)
        self.told = done
        self.scalars.zero_()

    def _resume(self) -> tuple[int, float]:
        """Bring model and optimiser to the last saved state; give its number of steps and seconds."""
        if (found := self.folder.load()) is None:
            return 0, 0.0
        tensors, note = found
        parts = {
            part: {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
            for part in ("model.", "optimizer.")
        }
        self.model.network.load_state_dict(parts["model."])
        load_moments(self.optimizer, parts["optimizer."])
        return int(note["step"]), float(note["seconds"])

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.begun


def _groups(model: VisionModel, decay: float) -> list[dict[str, Any]]:
    """Decay matrices and kernels, not biases, scales and other vectors."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


@torch.inference_mode()
def clean_error(model: VisionModel, samples: Samples) -> float:
    """Error in percent, in full precision."""
    wrong = 0
    for start in range(0, len(samples), _TEST_BATCH):
        images = to_float(samples.read(start, start + _TEST_BATCH).to(model.device))
        labels = samples.labels[start : start + _TEST_BATCH].to(model.device)
        wrong += int((model(model.prepare(images)).logits.argmax(1) != labels).sum())
    return 100 * wrong / len(samples)
