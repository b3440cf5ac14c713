"""The contract of every method: a model that predicts each batch and learns from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from testdg.bounds import require_range
from testdg.core.inputs import accept_images, refusing_small
from testdg.core.registry import find_method
from testdg.core.settings import Search, make_settings
from testdg.core.settings import Settings as BaseSettings
from testdg.core.state import read_folder, write_folder
from testdg.core.stateful import MARK, Stateful
from testdg.core.weights import frozen_copy, uses_batch
from testdg.errors import UserError, unknown
from testdg.models import VisionModel, load_model


class Adapter(Stateful):
    """A method around a model.

    `adapter(images)` predicts and learns, `adapter.predict(images)` predicts only. Images are float in [0, 1],
    NCHW, of any batch size. A method overrides `build` (make its parts from `self.model` and `self.settings`) and
    `step` (predict and learn from prepared images); `infer` where its prediction is not the model's own.
    All state lives in parameters, buffers, learners, `extra state` of submodules and `self.generator`, so that
    saving, loading and `reset` need no code in the method. A step that fails leaves all of it as it was: weights are
    written after the last pass, or handed to `keep` first.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    example_error: ClassVar[float | None] = None
    """Error (%) that its example ends with, which `register` adds to the description; None for one that has its own."""
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    needs: ClassVar[str] = ""
    source_data: ClassVar[str] = ""
    """What the method learns from source data before the stream (`warm_up`), in words; empty where it needs none."""
    source_labels: ClassVar[bool] = False
    """True where `warm_up` reads the labels of source images, too."""
    least_source_images: ClassVar[int] = 1
    """Fewer than this cannot be learnt from."""
    reconstruction: ClassVar[bool | tuple[str, ...]] = False
    """True where no code of the authors exists, so that parts which the paper leaves open are ours; or the tasks for
    which this holds."""
    differs_from_source: ClassVar[str] = ""
    """Why predictions differ from the source's even at learning rate 0, in words; empty where they do not."""
    Settings: ClassVar[type[BaseSettings]] = BaseSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    search: ClassVar[Search] = Search()
    """What `testdg tune` tries around the presets; nothing where a method declares nothing."""
    handles_bunches: ClassVar[bool] = False
    """True for a method that predicts and learns soundly while a stream shows one class for long."""
    checks_input_late: ClassVar[bool] = False
    """True for a method that calls `to_host` itself, before it changes any state."""
    learns: ClassVar[bool] = True
    """False for a method that predicts only."""

    def __init__(self, model: str | nn.Module, **settings: Any) -> None:
        super().__init__()
        make_settings(self.Settings, settings)  # a mistake is reported before the model is loaded
        self.model = frozen_copy(load_model(model))
        self.settings = make_settings(self.Settings, {**self.defaults_for(self.model), **settings})
        if self.model.task not in self.tasks:
            raise UserError(
                f"{self.name} is for {' and '.join(self.tasks)}; {self.model.name} is for {self.model.task}"
            )
        if self.model.head is None and self.needs_features:
            others = "name one with head=..., or take a method that needs no features, such as tent or cotta"
            raise UserError(f"{self.name} needs the layer that gives the logits of {self.model.name}: {others}")
        if (reason := self.refuses(self.model)) is not None:
            raise UserError(f"{self.name} cannot adapt {self.model.name}: {reason}")
        preprocessing = json.loads(json.dumps(self.model.preprocessing.describe()))  # as a saved state gives it back
        self.origin = {"fingerprint": self.model.fingerprint(), "preprocessing": preprocessing}
        self.generator = torch.Generator(self.model.device).manual_seed(self.settings.seed)
        self._range: Tensor | None = None
        self.build()
        self._note_source()

    # What a method defines

    def build(self) -> None:
        """Make the parts of the method."""

    def step(self, images: Tensor) -> Tensor:
        """Predict prepared images and learn from them."""
        raise TypeError(f"{type(self).__name__} does not define step")

    def infer(self, images: Tensor) -> Tensor:
        """Predict prepared images and change nothing."""
        return self.model(images).logits  # type: ignore[no-any-return]

    def in_stream(self, logits: Tensor) -> Tensor:
        """Correct the predictions of a batch by the predictions before it; `forward` returns the result."""
        return logits

    def stream_shift(self) -> Tensor | None:
        """What the predictions so far add to the logits of the next image of the stream, (C,); None for nothing."""
        return None

    def remarks(self) -> list[str]:
        """What a record must say of this adapter beside its settings."""
        return []

    def source_images(self) -> int:
        """How many source images `warm_up` must see before the first batch: those of the setting of this name."""
        return getattr(self.settings, "source_images", 0)

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Learn from prepared source images, once, before the stream; without `source_labels`, labels may be empty."""
        raise UserError(f"{self.name} learns nothing from source data: leave out warm_up")

    @property
    def needs_features(self) -> bool:
        """Whether the method looks at what enters the classifier, or at its weight."""
        return False

    @classmethod
    def defaults_for(cls, model: VisionModel) -> Mapping[str, Any]:
        """Defaults of settings that differ for this kind of network."""
        return {}

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        """Say why the method cannot adapt a model; None where it can."""
        return None

    @classmethod
    def reconstructed(cls) -> tuple[str, ...]:
        """The tasks for which the method is a reconstruction."""
        return cls.reconstruction if isinstance(cls.reconstruction, tuple) else cls.tasks if cls.reconstruction else ()

    @classmethod
    def exceptions(cls, model: VisionModel) -> Mapping[str, str]:
        """Checks of `testdg.testing.check_adapter` that do not hold for a model, each with the reason."""
        return {"learning rate 0 is the source": cls.differs_from_source} if cls.differs_from_source else {}

    def predicting_model(self) -> VisionModel:
        """The network that predicts now, as an ordinary model, but for what `beyond_weights` names."""
        return frozen_copy(self.model)

    def beyond_weights(self) -> str | None:
        """Say what a prediction depends on that one model with fixed weights cannot hold; None where it can."""
        batch = any(uses_batch(layer) for layer in self.model.modules())
        return "its BatchNorm layers use the statistics of the batch at hand" if batch else None

    # What a user calls

    def forward(self, images: Tensor) -> Tensor:
        """Predict a batch, then learn from it: (N, 3, H, W) in [0, 1] to logits."""
        self.require_source()
        images = self.accept(images)
        with torch.inference_mode(False), torch.enable_grad():
            images = images.clone() if images.is_inference() else images
            self._range = torch.stack(torch.aminmax(images.detach()))
            images = images.clamp(0, 1)  # a hair may lie outside
            if not self.checks_input_late:
                self.to_host()
            with refusing_small(images, self.model, self.name), self._whole():
                with self.autocast():
                    logits = self.step(self.model.prepare(images)).float().detach()
                logits = self.in_stream(logits)
        self.batches += 1
        self.images += len(images)
        return logits

    def predict(self, images: Tensor) -> Tensor:
        """Predict a batch and change nothing."""
        return self.predict_by(lambda infer, prepared: infer(prepared), images)

    @torch.no_grad()
    def predict_by(self, combine: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor], images: Tensor) -> Tensor:
        """Predict a batch by a function of `infer` and the prepared images, such as a mean over views."""
        images = self.checked(images)
        with refusing_small(images, self.model, self.name), self.autocast():
            return combine(self.infer, self.model.prepare(images)).float()

    def warm_up(self, batches: Iterable[Tensor | tuple[Tensor, Tensor]]) -> None:
        """Learn from source images in [0, 1] and their labels, once, before the stream; `reset` comes back to this.

        A method that needs no labels takes the images alone, too.
        """
        if self.batches or self._warm:
            raise UserError(f"{self.name} has begun already: make a new adapter and warm that one up")
        mark = self._mark()
        with torch.inference_mode(False), torch.enable_grad(), self.autocast():
            self.learn_source(self._prepared(batch) for batch in batches)
        before, now = self._source[0], {name: value.cpu() for name, value in self.tensors().items()}
        changed = [name for name in now if name not in before or not torch.equal(now[name], before[name])]
        self._warm = {**{name: now[name].clone() for name in changed}, MARK: mark}

    def _mark(self) -> Tensor:
        """The fingerprint of the model as it is, as a tensor."""
        return torch.tensor(list(bytes.fromhex(self.model.fingerprint())), dtype=torch.uint8, device="cpu")

    @property
    def warm(self) -> Mapping[str, Tensor]:
        """What `warm_up` has changed; empty before it."""
        return self._warm

    def load_warm(self, warm: Mapping[str, Tensor]) -> None:
        """Begin where the `warm_up` of another adapter like this one ended, which gives its `warm`."""
        if self.batches or self._warm:
            raise UserError(f"{self.name} has begun already: make a new adapter and warm that one up")
        if MARK not in warm or not torch.equal(warm[MARK].cpu(), self._mark()):
            raise UserError(f"this warm-up was made with another model than {self.model.name}: warm this adapter up")
        self._go_back(warm)
        self._warm = dict(warm)

    @property
    def awaits_source(self) -> bool:
        """Whether `warm_up` must come before the first batch."""
        return self.source_images() > 0 and not self._warm

    def require_source(self) -> None:
        """Refuse to go on without the source images that the method needs."""
        if self.awaits_source:
            raise UserError(f"{self.name} needs source data for {self.source_data}: call warm_up(batches) first")

    def reset(self) -> None:
        """Go back to the source (after `warm_up`, to what that gave), bit for bit."""
        self._go_back(self._warm)

    def _go_back(self, warm: Mapping[str, Tensor]) -> None:
        learnt = {name: value for name, value in warm.items() if name != MARK}
        self.load_state({**self._source[0], **learnt}, self._source[1])

    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> None:
        """Write everything that the next batch depends on: safetensors and JSON, replaced in one step.

        `note` is kept in the same `state.json`, for what must change together with the state.
        """
        self._refuse_torn()
        about = {
            "method": self.name,
            "settings": dataclasses.asdict(self.settings),
            "model": self.model.name,
            "origin": self.origin,
            "values": self.values(),
            "note": dict(note or {}),
        }
        write_folder(Path(folder), self.tensors(), about)

    @classmethod
    def load(cls, folder: str | Path, model: str | nn.Module) -> Adapter:
        """Load a saved adapter, around the model that it was made from; `load_online` loads one with a guard, too."""
        tensors, about = read_folder(Path(folder))
        adapter = cls.like_saved(folder, about, model)
        adapter.load_state(tensors, about["values"])
        return adapter

    @staticmethod
    def like_saved(folder: str | Path, about: Mapping[str, Any], model: str | nn.Module) -> Adapter:
        """Make the adapter that a state folder was saved from, as it was before its first batch."""
        if missing := {"method", "settings", "values"} - about.keys():
            raise UserError(f"{folder} is not a saved adapter: state.json has no {sorted(missing)[0]!r}")
        adapter = find_method(about["method"])(model, **about["settings"])
        adapter.check_origin(about)
        return adapter

    def check_origin(self, about: Mapping[str, Any]) -> None:
        """Refuse what was saved around another model, or with other preprocessing."""
        saved, own = about.get("origin", {}), self.origin
        for key, what in (("fingerprint", "weights"), ("preprocessing", "preprocessing")):
            if saved.get(key) != own[key]:
                raise UserError(
                    f"the saved state does not fit {self.model.name}: it was made from {about.get('model')} "
                    f"with other {what} ({saved.get(key)}, not {own[key]}): give that model"
                )

    def adapted_model(self) -> VisionModel:
        """An ordinary model that predicts as `predict` does now; a UserError where one model cannot."""
        if (reason := self.beyond_weights()) is not None:
            raise UserError(f"{self.name} cannot be exported here: {reason}; keep it with save()")
        return self.predicting_model()

    def export(self, folder: str | Path) -> None:
        """Write the adapted model as an ordinary checkpoint folder, which predicts as `predict` does."""
        self.adapted_model().save(folder)

    @classmethod
    def preset(cls, name: str | None) -> dict[str, Any]:
        """Settings published or chosen for a benchmark."""
        if name is None:
            return {}
        if name not in cls.presets:
            raise unknown(f"preset of {cls.name}", name, cls.presets)
        return dict(cls.presets[name])

    # What a guard around the adapter answers otherwise: see `OnlineModel`

    guard: ClassVar[None] = None
    guard_counts: ClassVar[None] = None
    decision: ClassVar[str] = ""

    @property
    def adapter(self) -> Adapter:
        """The adapter itself."""
        return self

    @property
    def learnt(self) -> bool:
        """Whether the adapter has learnt from the last batch."""
        return self.learns and self.batches > 0

    def event(self) -> dict[str, str | int]:
        """What a guard would add to the event of the last batch: nothing."""
        return {}

    # What a method calls

    def to_host(self, *values: Tensor) -> list[float]:
        """Bring numbers to the host together with the range of the input, in one transfer; refuse a bad input."""
        assert self._range is not None
        low, high, *rest = torch.cat([self._range.float(), *(v.detach().float().flatten() for v in values)]).tolist()
        require_range(low, high)
        return rest

    def _prepared(self, batch: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Source images, ready for the model, and their labels, none where the method does without."""
        images, labels = (batch, None) if isinstance(batch, Tensor) else batch
        if labels is None and self.source_labels:
            raise UserError(f"{self.name} needs source images with labels: warm_up takes pairs of both")
        images = self.model.prepare(self.checked(images))
        return images, images.new_empty(0) if labels is None else labels.to(self.model.device)

    def accept(self, images: Tensor) -> Tensor:
        """Bring a batch to the device, or say what is wrong with its type and shape."""
        return accept_images(images, self.model)

    def checked(self, images: Tensor) -> Tensor:
        """Accept a batch after a look at its values, which waits for the device."""
        images = self.accept(images)
        self._range = torch.stack(torch.aminmax(images))
        self.to_host()
        return images.clamp(0, 1)

    def autocast(self) -> AbstractContextManager[Any]:
        """Passes within are in the precision that was asked for."""
        if self.settings.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.model.device.type, torch.bfloat16)

    def train(self, mode: bool = True) -> Adapter:
        """Change nothing: which layers are in training mode is the method's business, so `eval()` is harmless."""
        return self

    def __repr__(self) -> str:
        """Method, model and settings on one line."""
        settings = ", ".join(f"{key}={value!r}" for key, value in dataclasses.asdict(self.settings).items())
        return f"{type(self).__name__}({self.model.name}, {settings})"


class TeacherAdapter(Adapter):
    """A method whose averaged teacher predicts: `build` makes `self.teacher`."""

    teacher: VisionModel

    def infer(self, images: Tensor) -> Tensor:
        """Predict with the teacher."""
        return self.teacher(images).logits  # type: ignore[no-any-return]

    def predicting_model(self) -> VisionModel:
        """The teacher."""
        return frozen_copy(self.teacher)
