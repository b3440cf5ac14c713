"""The steps of `fine_tune`: batches, loss, progress, and a state from which a training resumes."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from testdg.core.fitting import fit
from testdg.core.learner import load_moments, moments
from testdg.data.stream import LabelledImages, to_float
from testdg.errors import UserError
from testdg.models import VisionModel
from testdg.runs.training.folder import TrainingFolder
from testdg.runs.training.losses import share_wrong
from testdg.runs.training.recipe import Tuning

OnProgress = Callable[[int, int, float, float], None]
"""Hears the steps done and to do, and of the steps since the last time the mean loss and the error in percent."""

_TELL_EVERY = 20  # steps whose scalars come to the host together
_CLIP = 1.0  # norm of the gradient


class Training:
    """One training, from whatever its folder holds to the last step; the recipe gives groups, views and the loss.

    All random numbers are keyed by the seed and the number of the step, so that a state needs no generators.
    """

    def __init__(
        self,
        model: VisionModel,
        samples: LabelledImages,
        recipe: Tuning,
        folder: TrainingFolder,
        on_progress: OnProgress,
        pause: float,
    ) -> None:
        self.model, self.recipe, self.folder, self.on_progress = model, recipe, folder, on_progress
        self.pause, self.device = pause, model.device  # pause: seconds between two saved states
        self.samples = brought_near(samples, self.device)
        self.batch_size = min(recipe.batch_size, len(samples))
        self.epoch = len(samples) // self.batch_size  # steps; a short last batch is left out
        self.steps = recipe.epochs * self.epoch
        self.optimizer = torch.optim.AdamW(recipe.groups(model), recipe.learning_rate)
        self.loss = recipe.loss(self.samples.labels, model.classes, self.device)
        self.scalars = torch.zeros(2, device=self.device)  # summed loss and share of errors since the last report

    def run(self) -> float:
        """Train to the end, leave the model in evaluation mode, and give the seconds that it took in all."""
        start, self.seconds = self._resume()
        self.last_told, self.begun, self.saved = start, time.monotonic(), time.monotonic()
        self.model.train()
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            batches = self._batches(start)
            fit(self._step, self.optimizer, batches, steps=self.steps, start=start, clip=_CLIP, after=self._after)
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
            yield self.recipe.view(to_float(images[chosen].to(self.device)), labels[chosen].to(self.device), generator)

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
        due = time.monotonic() - self.saved >= self.pause
        if due or done % _TELL_EVERY == 0 or done == self.steps:
            self._tell(done)
        if due and done < self.steps:
            weights = {f"model.{name}": value for name, value in self.model.network.state_dict().items()}
            remembered = {f"optimizer.{name}": value for name, value in moments(self.optimizer).items()}
            self.folder.save({**weights, **remembered}, done, self._elapsed())
            self.saved = time.monotonic()

    def _tell(self, done: int) -> None:
        """Bring the scalars to the host; a loss that is not finite ends the training before it is saved."""
        loss, errors = (self.scalars / (done - self.last_told)).tolist()
        if not math.isfinite(loss):
            rate = self.recipe.learning_rate
            message = f"the loss is {loss} after {done} steps: choose a smaller --learning-rate than {rate}"
            raise UserError(message, code="diverged")
        self.on_progress(done, self.steps, loss, 100 * errors)
        self.last_told = done
        self.scalars.zero_()

    def _resume(self) -> tuple[int, float]:
        """Bring model and optimiser to the last saved state; give its number of steps and seconds."""
        if (found := self.folder.load()) is None:
            return 0, 0.0
        tensors, note = found
        self.model.network.load_state_dict(_part(tensors, "model."))
        load_moments(self.optimizer, _part(tensors, "optimizer."))
        return int(note["step"]), float(note["seconds"])

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.begun


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def brought_near(samples: LabelledImages, device: torch.device) -> LabelledImages:
    """Keep all images on the graphics card where they take less than a quarter of what is free there."""
    if device.type != "cuda":
        return samples
    images, labels = samples.images, samples.labels
    fits = 4 * (images.nbytes + labels.nbytes) < torch.cuda.mem_get_info(device)[0]
    return LabelledImages(images.to(device), labels.to(device)) if fits else samples
