"""Session: a source model, the method around it, its source images and its guard, ready for the first batch.

`run`, `bench`, `analyze`, `adapt`, `serve` and the Python API all open one here, so that an option has the same meaning
in each of them. `open_run` opens a run on a benchmark, `open_pictures` a stream of a user's own pictures.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from testdg.bounds import read_text
from testdg.core.adapter import Adapter
from testdg.core.guard import guard
from testdg.core.learner import Learner
from testdg.core.online import OnlineModel, load_online
from testdg.core.state import read_folder
from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.data.stream import Stream
from testdg.errors import UserError
from testdg.methods import find_method
from testdg.models import VisionModel, load_model
from testdg.models.canvas import Canvas
from testdg.models.loading import find_device
from testdg.runs.observer import Observer
from testdg.runs.protocol import Protocol, read_protocol
from testdg.runs.record import make_record, settings_origin
from testdg.runs.source import SourceFolder, SourceImages, TrainingImages, cached_warm_up, source_model
from testdg.schema import plain
from testdg.spec import SOURCE, RunSpec

DEFAULT_METHOD = "testdg_aligned"
BATCH_SIZE = {"classification": 32, "segmentation": 1}
"""Pictures in a batch of a user's own stream."""


class Event(NamedTuple):
    """What happened at one batch; tensors may still be on the device."""

    logits: Tensor
    learnt: bool = False
    reason: str = ""
    """Why the guard did not learn from the batch, or undid the step; empty if it did not interfere."""
    diagnostics: Mapping[str, Tensor | float | bool | str] = {}
    guard: Mapping[str, str | int] = {}
    """What the guard adds to the log."""
    skipped_updates: Tensor | None = None
    """Updates so far that were left out because a loss or a gradient was not finite."""

    @property
    def change(self) -> bool:
        """Whether the method detected a change of conditions; reading this waits for the device."""
        return bool(self.diagnostics.get("change", False))


class Session:
    """A model that is ready for a stream, except for what it learns from source images (`warm_up`)."""

    def __init__(
        self, model: VisionModel, online: OnlineModel, source: SourceImages | None, names: Sequence[str] = ()
    ) -> None:
        self.model, self.online, self.source = model, online, source
        self.names = list(names)
        self.notes: list[str] = []
        """Messages for the user, in full sentences."""

    @property
    def adapter(self) -> Adapter:
        """The adapter, without the guard."""
        return self.online.adapter

    @cached_property
    def canvas(self) -> Canvas:
        return Canvas(self.model.preprocessing)

    @cached_property
    def _learners(self) -> list[Learner]:
        return list(self.adapter.learners().values())

    def require_source(self) -> SourceImages | None:
        """The source images, checked; an error if the method needs some and there are none."""
        if not self.adapter.awaits_source:
            return None
        if self.source is None:
            message = f"{self.adapter.name} needs clean pictures of the source for {self.adapter.source_data}"
            raise UserError(f"{message}: name a folder with --source, or choose another method", code="no-source")
        self.source.batches(self.adapter)
        return self.source

    def warm_up(self) -> None:
        """Learn from source images if the method needs it and a restored state does not contain it already."""
        if (source := self.require_source()) is None:
            return
        if (key := source.cache_key(self.adapter)) is None:
            self.online.warm_up(source.batches(self.adapter))
        else:
            cached_warm_up(self.online, key, source)

    def step(self, images: Tensor, *, learn: bool = True) -> Event:
        """Predict a batch of images in [0, 1], learn from it, and describe what happened."""
        if not learn:
            return Event(self.online.predict(images))
        logits, own = self.online(images), self.online.event()
        diagnostics = {
            name: value.detach().clone() if isinstance(value, Tensor) else value
            for name, value in self.online.diagnostics.items()
            if name not in own
        }
        skipped = None
        if self._learners:
            skipped = torch.stack([learner.skipped for learner in self._learners]).sum()
        return Event(logits, self.online.learnt, self.online.decision, diagnostics, own, skipped)

    @torch.no_grad()
    def predict_by(self, model: VisionModel, images: Tensor) -> Tensor:
        """The logits of any model, such as the source, in the precision of the adapter."""
        with self.adapter.autocast():
            return model(model.prepare(images.to(model.device))).logits.float()  # type: ignore[no-any-return]

    def restore(self, folder: Path) -> dict[str, Any]:
        """Load a saved state of the same model, method and settings; returns the note that was saved with it."""
        tensors, about = read_folder(folder)
        self.adapter.check_origin(about)
        self.online.load_state(tensors, about["values"])
        return dict(about.get("note", {}))

    def fresh(self) -> Session:
        """A new session, as this one was before its first batch, around the same source model; warm-up is reused."""
        first, watched = self.adapter, self.online.guard
        adapter = type(first)(self.untouched, **asdict(first.settings))
        if first.warm:
            adapter.load_warm(first.warm)
        online = adapter if watched is None else guard(adapter, watched.health.probe.images)
        session = Session(self.model, online, self.source, self.names)
        session.canvas = self.canvas
        return session

    @cached_property
    def untouched(self) -> VisionModel:
        """A copy of the source model that never predicts: a copy made during a pass would contain its hooks."""
        return copy.deepcopy(self.model)


# Runs on a benchmark


class RunSession(Session):
    def __init__(
        self,
        spec: RunSpec,
        benchmark: Benchmark,
        protocol: Protocol,
        model: VisionModel,
        online: OnlineModel,
        source: SourceImages | None,
    ) -> None:
        super().__init__(model, online, source, benchmark.classes)
        self.spec, self.benchmark, self.protocol = spec, benchmark, protocol
        self.stream: Stream = protocol.stream(benchmark, spec.batch_size)
        origin = [settings_origin(spec, preset_of(spec, benchmark)), *online.adapter.remarks()]
        if self.source_folder:
            origin.append(f"source images of {self.source_folder}")
        if spec.guard:
            origin.append("with a guard")
        self.record = make_record(protocol, benchmark, self.stream, online.adapter, "; ".join(origin))

    @property
    def source_folder(self) -> Path | None:
        """The user's folder of source images, if it is used."""
        return self.source.path if isinstance(self.source, SourceFolder) else None

    def config(self) -> dict[str, Any]:
        """Everything that the numbers of the run depend on, as plain values."""
        method = {"name": self.adapter.name, "settings": plain(asdict(self.adapter.settings))}
        return {"protocol": {**self.record, **plain(self.spec.recorded)}, "method": method}


def open_run(
    spec: RunSpec,
    observer: Observer | None = None,
    *,
    benchmark: Benchmark | None = None,
    model: str | Path | nn.Module | None = None,
) -> RunSession:
    """Open the session of a run; pass `benchmark` and `model` if they are objects instead of names.

    Invalid options are reported before a source model is loaded or trained.
    """
    method, device = find_method(spec.method), find_device(spec.device)
    plain_run = benchmark is None and model is None
    benchmark = benchmark or open_benchmark(spec)
    protocol = spec.stream or read_protocol(spec.protocol or benchmark.protocol)
    benchmark = protocol.choose(benchmark)
    protocol.stream(benchmark, spec.batch_size)
    preset = preset_of(spec, benchmark)
    values = {**method.preset(preset), "seed": spec.seed, "precision": spec.precision, **spec.settings}
    if plain_run:
        source = open_model(spec, device.type, observer)
        benchmark = protocol.choose(open_benchmark(spec))  # by now it has adopted the model's size and classes
    else:
        named = spec.model if model is None else model
        source = source_model(benchmark, named, device=device, observer=observer, preprocessing=spec.preprocessing)
    adapter = method(source, **values)
    images: SourceImages = TrainingImages(benchmark)
    if spec.source is not None and (spec.guard or adapter.source_images()):
        images = SourceFolder(Path(spec.source), benchmark.classes)
    online: OnlineModel = guard(adapter, images.probe(adapter)) if spec.guard else adapter
    return RunSession(spec, benchmark, protocol, source, online, images)


def preset_of(spec: RunSpec, benchmark: Benchmark) -> str | None:
    """The preset that a run applies: the requested one, or by default an embedded benchmark's own."""
    if spec.preset is not None:
        return None if spec.preset == "none" else spec.preset
    return benchmark.name if benchmark.embedded and benchmark.name in find_method(spec.method).presets else None


_benchmarks: dict[tuple[str, str | None, str], Benchmark] = {}
_models: dict[tuple[RunSpec, str], VisionModel] = {}


def open_benchmark(spec: RunSpec) -> Benchmark:
    """The benchmark of a run with its options; the last one is cached for the next run."""
    key = spec.benchmark, spec.data, repr(spec.options)
    if key not in _benchmarks:
        free_cache()
        _benchmarks[key] = load_benchmark(spec.benchmark, spec.data, **spec.options)
    return _benchmarks[key]


def open_model(spec: RunSpec, device: str, observer: Observer | None = None) -> VisionModel:
    """The source model of a run on a device; the last one is cached for the next run."""
    benchmark, key = open_benchmark(spec), (spec.setup, device)
    if key not in _models:
        _models.clear()
        kind = spec.preprocessing
        _models[key] = source_model(benchmark, spec.model, device=device, observer=observer, preprocessing=kind)
    return _models[key]


def free_cache() -> None:
    _benchmarks.clear()
    _models.clear()


# Streams of a user's own pictures


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """Options of a stream of pictures. Without `method`, the loaded state decides, or else `DEFAULT_METHOD`."""

    method: str | None = None
    source: Path | None = None
    guard: bool = True
    classes: str | Path | Sequence[str] | None = None
    device: str = "auto"
    load_state: Path | None = None


def open_pictures(
    model: str | Path | nn.Module, options: PictureOptions, settings: Mapping[str, Any] | None = None
) -> Session:
    """Open the session of a stream of pictures, around any model."""
    source: VisionModel = load_model(model).to(find_device(options.device))
    names, values = class_names(source, options.classes), dict(settings or {})
    images = None if options.source is None else SourceFolder(options.source, names)
    if options.load_state is not None:
        return Session(source, _load_state(options.load_state, source, options, images, values), images, names)
    method, notes = find_method(options.method or DEFAULT_METHOD), []
    has_sketch = "sketch" in {field.name for field in fields(method.Settings)}
    if images is None and has_sketch and "sketch" not in values:
        # without clean pictures, align to the beginning of the stream if the method supports it
        count = values.get("source_images", method.Settings().source_images)  # type: ignore[attr-defined]
        notes.append(
            f"no --source: the first {count} pictures stand for the clean ones, and {method.name} starts after them; "
            "pass a folder of clean pictures with --source if the stream does not start with clean ones"
        )
        values["sketch"] = "stream"
    adapter = method(source, **values)
    learns = method.name != SOURCE
    if images is not None and not adapter.source_images() and not (learns and options.guard):
        why = "needs no clean pictures" if learns else "learns nothing"
        raise UserError(f"--source has no effect: {method.name} {why}; leave it out", code="option-conflict")
    session = Session(source, _guarded(adapter, images, options), images, names)
    session.notes += notes
    session.require_source()
    return session


def _guarded(adapter: Adapter, source: SourceImages | None, options: PictureOptions) -> OnlineModel:
    if not options.guard or adapter.name == SOURCE:
        return adapter
    return guard(adapter, None if source is None else source.probe(adapter))


def _load_state(
    folder: Path,
    model: VisionModel,
    options: PictureOptions,
    source: SourceImages | None,
    settings: Mapping[str, object],
) -> OnlineModel:
    """The model in a folder of `--save-state`, with or without a guard around it."""
    if settings:
        message = f"--load-state {folder} has its own settings: leave out {sorted(settings)[0]}"
        raise UserError(message, code="option-conflict")
    online = load_online(folder, model)
    method = online.adapter.name
    if options.method not in (None, method):
        message = f"--load-state {folder} is of {method}, not of {options.method}: leave out --method"
        raise UserError(message, code="option-conflict")
    if online.guard is None:
        return _guarded(online.adapter, source, options)
    if source is not None:
        message = f"--source has no effect: --load-state {folder} has its clean pictures; leave it out"
        raise UserError(message, code="option-conflict")
    return online if options.guard else online.adapter


def class_names(model: VisionModel, given: str | Path | Sequence[str] | None = None) -> list[str]:
    """A name for every class: from `given`, which is a list or a file with one name per line, else from the model."""
    if given is None:
        names, numbers = list(model.class_names), [str(number) for number in range(model.classes)]
        if names not in (numbers, [f"LABEL_{number}" for number in numbers]):
            return names
        of_timm = (getattr(model.network, "pretrained_cfg", None) or {}).get("label_names") or ()
        return [str(name) for name in of_timm] if len(of_timm) == model.classes else numbers
    if isinstance(given, str | Path):
        try:
            names = [line.strip() for line in read_text(given).splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            message = f"{given} cannot be read as a list of classes: expected one per line ({error})"
            raise UserError(message, code="unreadable-list") from error
    else:
        names = [str(name) for name in given]
    if len(names) != model.classes:
        whose = f"{given} names" if isinstance(given, str | Path) else "there are"
        message = f"{whose} {len(names)} classes; {model.name} has {model.classes}: name each, in order"
        raise UserError(message, code="wrong-classes")
    return names
