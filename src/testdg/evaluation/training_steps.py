"""The steps of a training that `fine_tune` makes: batches, loss, progress, and a state that it goes on from."""

from __future__ import annotations

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from testdg.data.stream import Samples, to_float
from testdg.data.training_views import training_view
from testdg.errors import UserError
from testdg.evaluation.recipes import FineTuning, MapTuning
from testdg.evaluation.training_folder import TrainingFolder
from testdg.fitting import fit, load_moments, moments
from testdg.models import VisionModel

Tell = Callable[[int, int, float, float], None]
"""Hears the steps done and to do, and of the steps since the last time the mean loss and the error in percent."""

R = TypeVar("R", FineTuning, MapTuning)

_TELL_EVERY = 20  # steps whose scalars come to the host together
_CLIP = 1.0  # norm of the gradient


class Training(ABC, Generic[R]):
    """One training, from whatever its folder holds to the last step; a task adds its groups, views and losses.

    All random numbers are keyed by the seed and the number of the step, so that a state needs no generators.
    """

    def __init__(
        self, model: VisionModel, samples: Samples, recipe: R, folder: TrainingFolder, tell: Tell, save_every: float
    ) -> None:
        self.recipe: R = recipe
        self.model, self.folder = model, folder
        self.tell, self.save_every, self.device = tell, save_every, model.device
        self.samples = brought_near(samples, self.device)
        self.batch_size = min(recipe.batch_size, len(samples))
        self.epoch = len(samples) // self.batch_size  # steps; a short last batch is left out
        self.steps = recipe.epochs * self.epoch
        self.optimizer = torch.optim.AdamW(self.groups(), recipe.learning_rate)
        self.scalars = torch.zeros(2, device=self.device)  # summed loss and share of errors; since they were told

    def groups(self) -> list[dict[str, Any]]:
        """What the optimiser learns, and how."""
        return decayed(self.model, self.recipe.weight_decay)

    @abstractmethod
    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Augment images in [0, 1], and their labels where they must go along."""

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the share of errors, both on the device."""

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
        images, labels, generator = self.samples.images, self.samples.labels, torch.Generator(self.device)
        for number in range(start, self.steps):
            epoch, place = divmod(number, self.epoch)
            if place == 0 or number == start:
                keyed = torch.Generator().manual_seed(self._key("order", epoch))
                order = torch.randperm(len(labels), generator=keyed).to(labels.device)
            chosen = order[place * self.batch_size : (place + 1) * self.batch_size]
            torch.manual_seed(self._key("network", number))  # dropout draws from the global generator
            generator.manual_seed(self._key("view", number))
            yield self.view(to_float(images[chosen].to(self.device)), labels[chosen].to(self.device), generator)

    def _key(self, what: str, number: int) -> int:
        digest = hashlib.blake2b(f"{self.recipe.seed}/{what}/{number}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "little")

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        prepared = self.model.prepare(images)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            logits = self.model(prepared).logits
        loss, errors = self.losses(logits.float(), labels)
        self.scalars += torch.stack([loss.detach(), errors])
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
        loss, errors = (self.scalars / (done - self.told)).tolist()
        if not math.isfinite(loss):
            rate = self.recipe.learning_rate
            raise UserError(f"the loss is {loss} after {done} steps: choose a smaller --learning-rate than {rate}")
        self.tell(done, self.steps, loss, 100 * errors)
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


class ClassTraining(Training[FineTuning]):
    """Training of a classifier."""

    def view(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """A shifted crop, a mirror image, light colours."""
        return training_view(images, generator, flip=self.recipe.flip, colour=self.recipe.colour), labels

    def losses(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy, and the share of wrong answers."""
        loss = F.cross_entropy(logits, labels, label_smoothing=self.recipe.smoothing)
        return loss, (logits.argmax(1) != labels).float().mean()


def decayed(module: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Groups of an optimiser: decay matrices and kernels, not biases, scales and other vectors."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def brought_near(samples: Samples, device: torch.device) -> Samples:
    """Keep all images on the graphics card where they take less than a quarter of what is free there."""
    if device.type != "cuda":
        return samples
    images, labels = samples.images, samples.labels
    fits = 4 * (images.nbytes + labels.nbytes) < torch.cuda.mem_get_info(device)[0]
    return Samples(images.to(device), labels.to(device)) if fits else samples
