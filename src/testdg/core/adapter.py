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
from testdg.core.registry import find_method
from testdg.core.settings import Search, make_settings
from testdg.core.settings import Settings as BaseSettings
from testdg.core.state import Values, read_folder, write_folder
from testdg.core.stateful import MARK, Stateful, Undo
from testdg.core.weights import frozen_copy, uses_batch
from testdg.errors import UserError, unknown
from testdg.models import VisionModel, load_model

Infer = Callable[[Tensor], Tensor]
"""Returns the logits of prepared images."""


class Adapter(Stateful):
    """A method around a model.

    `adapter(images)` predicts and learns, `adapter.predict(images)` predicts only. Images are float in [0, 1],
    NCHW, of any batch size. A method overrides `build` (make its parts from `self.model` and `self.settings`) and
    `step` (predict and learn from prepared images); `infer` where its prediction is not the model's own.
    All state lives in parameters, buffers, learners, `extra state` of submodules and `self.generator`, so that
    saving, loading and `reset` need no code in the method. A step that fails changes none of it: weights are written
    after the last pass, or passed to `keep` first.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    example_error: ClassVar[float | None] = None
    """Error (%) that the example in the documentation prints; `register` adds this example. None: it has its own."""
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    needs: ClassVar[str] = ""
    source_data: ClassVar[str] = ""
    """What the method learns from source data in `warm_up`; empty where it needs none."""
    source_labels: ClassVar[bool] = False
    """True if `warm_up` needs the labels of source images."""
    least_source_images: ClassVar[int] = 1
    """Smallest useful number of source images."""
    reconstruction: ClassVar[bool | tuple[str, ...]] = False
    """True if the authors published no code, so that we decided what the paper leaves open; or the tasks for which
    this holds."""
    differs_from_source: ClassVar[str] = ""
    """Why predictions differ from the source's even at learning rate 0; empty where they do not."""
    Settings: ClassVar[type[BaseSettings]] = BaseSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    search: ClassVar[Search] = Search()
    """What `testdg tune` tries around the presets."""
    handles_bunches: ClassVar[bool] = False
    """True for a method that stays accurate while a stream shows one class for a long time."""
    checks_input_late: ClassVar[bool] = False
    """True for a method that calls `to_host` itself, before it changes any state."""
    learns: ClassVar[bool] = True
    """False for a method that predicts only."""

    def __init__(self, model: str | nn.Module, **settings: Any) -> None:
        super().__init__()
        self.settings = make_settings(self.Settings, settings)  # a mistake is reported before the model is loaded
        self.model = own = frozen_copy(load_model(model))
        if defaults := self.defaults_for(own):
            self.settings = make_settings(self.Settings, {**defaults, **settings})
        if own.task not in self.tasks:
            tasks = " and ".join(self.tasks)
            raise UserError(f"{self.name} is for {tasks}; {own.name} is for {own.task}", code="wrong-task")
        if own.head is None and self.needs_features:
            others = "use a method that needs no features, such as tent or cotta"
            remedy = f"name one with head=..., or {others}"
            raise UserError(f"{self.name} needs the head of {own.name}: {remedy}", code="no-head")
        if (reason := self.refuses(own)) is not None:
            raise UserError(f"{self.name} cannot adapt {own.name}: {reason}", code="unsuitable-model")
        preprocessing = json.loads(json.dumps(own.preprocessing.describe()))  # as it is loaded
        self.origin = {"fingerprint": own.fingerprint(), "preprocessing": preprocessing}
        self.generator = torch.Generator(self.model.device).manual_seed(self.settings.seed)
        self._range: Tensor | None = None
        self.build()
        self._undo = Undo(self)
        self._source = {key: value.cpu().clone() for key, value in self.tensors().items()}, self.values()

    # What a method defines

    def build(self) -> None:
        """Make the parts of the method from `self.model` and `self.settings`."""

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
        """What `in_stream` would add to the logits of the next image, (C,); None for nothing."""
        return None

    def remarks(self) -> list[str]:
        """What a record must mention about this adapter in addition to its settings."""
        return []

    def source_images(self) -> int:
        """Number of source images that `warm_up` needs: the setting of this name."""
        return getattr(self.settings, "source_images", 0)

    def learn_source(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Learn from prepared source images, once, before the stream; labels may be empty without `source_labels`."""
        raise UserError(f"{self.name} learns nothing from source data: leave out warm_up", code="no-effect")

    @property
    def needs_features(self) -> bool:
        """Whether the method uses the input or the weight of the classifier."""
        return False

    @classmethod
    def defaults_for(cls, model: VisionModel) -> Mapping[str, Any]:
        """Defaults that differ from those of `Settings` for this kind of network."""
        return {}

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        """Why the method cannot adapt a model; None where it can."""
        return None

    @classmethod
    def reconstructed(cls) -> tuple[str, ...]:
        """The tasks for which the method is a reconstruction."""
        if isinstance(cls.reconstruction, tuple):
            return cls.reconstruction
        return cls.tasks if cls.reconstruction else ()

    @classmethod
    def exceptions(cls, model: VisionModel) -> Mapping[str, str]:
        """Checks of `testdg.testing.check_adapter` that do not hold for a model, each with the reason."""
        return {"learning rate 0 is the source": cls.differs_from_source} if cls.differs_from_source else {}

    def predicting_model(self) -> VisionModel:
        """The network that predicts now, as an ordinary model, without what `why_not_exportable` names."""
        return frozen_copy(self.model)

    def why_not_exportable(self) -> str | None:
        """What predictions depend on that a model with fixed weights cannot store; None for nothing."""
        batch = any(uses_batch(layer) for layer in self.model.modules())
        return "its BatchNorm layers use the statistics of the batch" if batch else None

    # What a user calls

    def forward(self, images: Tensor) -> Tensor:
        """Predict a batch, then learn from it: (N, 3, H, W) in [0, 1] to logits."""
        self.require_source()
        images = self.accept(images)
        with torch.inference_mode(False), torch.enable_grad():
            images = images.clone() if images.is_inference() else images
            self._range = torch.stack(torch.aminmax(images.detach()))
            images = images.clamp(0, 1)  # resizing may overshoot a little
            if not self.checks_input_late:
                self.to_host()
            with self.model.refusing_small(images), self._whole():
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
    def predict_by(self, combine: Callable[[Infer, Tensor], Tensor], images: Tensor) -> Tensor:
        """Predict a batch by a function of `infer` and the prepared images, such as a mean over views."""
        images = self.checked(images)
        with self.model.refusing_small(images), self.autocast():
            return combine(self.infer, self.model.prepare(images)).float()

    def warm_up(self, batches: Iterable[Tensor | tuple[Tensor, Tensor]]) -> None:
        """Learn from source images in [0, 1] and their labels, once, before the stream; `reset` returns to this state.

        A method that needs no labels accepts images alone, too.
        """
        self._refuse_started()
        mark = self._mark()
        with torch.inference_mode(False), torch.enable_grad(), self.autocast():
            self.learn_source(self._prepared(batch) for batch in batches)
        before, now = self._source[0], {name: value.cpu() for name, value in self.tensors().items()}
        changed = [name for name in now if name not in before or not torch.equal(now[name], before[name])]
        self._warm = {MARK: mark, **{name: now[name].clone() for name in changed}}

    def _refuse_started(self) -> None:
        if self.batches or self._warm:
            raise UserError(f"{self.name} has started: warm up a new adapter", code="already-started")

    def _mark(self) -> Tensor:
        """The fingerprint of the model, as a tensor."""
        return torch.tensor(list(bytes.fromhex(self.model.fingerprint())), dtype=torch.uint8, device="cpu")

    @property
    def warm(self) -> Mapping[str, Tensor]:
        """What `warm_up` has changed; empty before it."""
        return self._warm

    def load_warm(self, warm: Mapping[str, Tensor]) -> None:
        """Use the `warm` of another adapter like this one in place of a `warm_up`."""
        self._refuse_started()
        if MARK not in warm or not torch.equal(warm[MARK].cpu(), self._mark()):
            raise UserError(f"this warm-up is not of {self.model.name}: call warm_up", code="other-model")
        self._go_back(warm)
        self._warm = dict(warm)

    @property
    def awaits_source(self) -> bool:
        """Whether `warm_up` must come before the first batch."""
        return self.source_images() > 0 and not self._warm

    def require_source(self) -> None:
        """Raise a UserError if the method still needs source images."""
        if self.awaits_source:
            needs = f"{self.name} needs source data for {self.source_data}"
            raise UserError(f"{needs}: call warm_up(batches) first", code="no-source-data")

    def reset(self) -> None:
        """Go back to the source (after `warm_up`, to its result), bit for bit."""
        self._go_back(self._warm)

    def _go_back(self, warm: Mapping[str, Tensor]) -> None:
        learnt = {name: value for name, value in warm.items() if name != MARK}
        self.load_state({**self._source[0], **learnt}, self._source[1])

    def save(self, folder: str | Path, note: Mapping[str, Any] | None = None) -> None:
        """Write everything that the next batch depends on: safetensors and JSON, replaced in one step.

        `note` is stored in the same `state.json`, for values that must change together with the state.
        """
        self.save_state(folder, self.tensors(), self.values(), note)

    def save_state(
        self, folder: str | Path, tensors: dict[str, Tensor], values: Values, note: Mapping[str, Any] | None
    ) -> None:
        """Write a state that is the adapter's own, or that of a guard around it."""
        self._refuse_torn()
        about = {
            "method": self.name,
            "settings": dataclasses.asdict(self.settings),
            "model": self.model.name,
            "origin": self.origin,
            "values": values,
            "note": dict(note or {}),
        }
        write_folder(Path(folder), tensors, about)

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
            lacks = f"state.json has no {min(missing)!r}"
            raise UserError(f"{folder} is not a saved adapter: {lacks}", code="no-state")
        adapter = find_method(about["method"])(model, **about["settings"])
        adapter.check_origin(about)
        return adapter

    def check_origin(self, about: Mapping[str, Any]) -> None:
        """Raise a UserError for a state of another model, or of the same with other preprocessing."""
        saved, own = about.get("origin", {}), self.origin
        for key, what in (("fingerprint", "weights"), ("preprocessing", "preprocessing")):
            if saved.get(key) != own[key]:
                other = f"it was made from {about.get('model')} with other {what} ({saved.get(key)}, not {own[key]})"
                raise UserError(f"the saved state does not fit {self.model.name}: {other}", code="other-model")

    def adapted_model(self) -> VisionModel:
        """An ordinary model that predicts as `predict` does now; a UserError where one model cannot."""
        if (reason := self.why_not_exportable()) is not None:
            raise UserError(f"{self.name} cannot be exported: {reason}; use save()", code="not-exportable")
        return self.predicting_model()

    def export(self, folder: str | Path) -> None:
        """Write the adapted model as a checkpoint folder; it predicts as `predict` does."""
        self.adapted_model().save(folder)

    @classmethod
    def preset(cls, name: str | None) -> Values:
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
        return self

    @property
    def learnt(self) -> bool:
        return self.learns and self.batches > 0

    def event(self) -> dict[str, str | int]:
        return {}

    # What a method calls

    def to_host(self, *values: Tensor) -> list[float]:
        """Copy numbers and the range of the input to the host, in one transfer; a bad input is refused."""
        assert self._range is not None
        flat = [value.detach().float().flatten() for value in (self._range, *values)]
        low, high, *rest = torch.cat(flat).tolist()
        require_range(low, high)
        return rest

    def _prepared(self, batch: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, labels = (batch, None) if isinstance(batch, Tensor) else batch
        if labels is None and self.source_labels:
            raise UserError(f"{self.name} needs labels: pass pairs of images and labels to warm_up", code="no-labels")
        images = self.model.prepare(self.checked(images))
        return images, images.new_empty(0) if labels is None else labels.to(self.model.device)

    def accept(self, images: Tensor) -> Tensor:
        """Move a batch to the device; wrong types and shapes are refused."""
        return self.model.accept(images)

    def checked(self, images: Tensor) -> Tensor:
        """Accept a batch and check its values, which waits for the device."""
        images = self.accept(images)
        self._range = torch.stack(torch.aminmax(images))
        self.to_host()
        return images.clamp(0, 1)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context in which passes have the precision of the settings."""
        if self.settings.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.model.device.type, torch.bfloat16)

    def train(self, mode: bool = True) -> Adapter:
        """Change nothing: the method decides which layers are in training mode, so `eval()` is harmless."""
        return self

    def __repr__(self) -> str:
        values = dataclasses.asdict(self.settings)
        settings = ", ".join(f"{key}={value!r}" for key, value in values.items())
        return f"{type(self).__name__}({self.model.name}, {settings})"


class TeacherAdapter(Adapter):
    """A method whose averaged teacher predicts: `build` makes `self.teacher`."""

    teacher: VisionModel

    def infer(self, images: Tensor) -> Tensor:
        return self.teacher(images).logits  # type: ignore[no-any-return]

    def predicting_model(self) -> VisionModel:
        return frozen_copy(self.teacher)
