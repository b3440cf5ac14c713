"""What an analysis looks at: cells, their complete runs, adapters before, during and after the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testdg.data.benchmarks import Benchmark
from testdg.data.stream import Batch, Domain, Stream
from testdg.errors import UserError
from testdg.methods import Adapter, find_method
from testdg.methods.testdg import TestDG
from testdg.models import VisionModel
from testdg.models.device import find_device
from testdg.runs import Result
from testdg.runs.folder import load_adapted
from testdg.runs.record import make_record, plain_values
from testdg.runs.run import describe_tuning
from testdg.runs.source import warm_up
from testdg.studies.engine import load_setup
from testdg.studies.grid import SOURCE, Cell

Array = np.ndarray[Any, np.dtype[Any]]
Numbers = dict[str, Any]
Encode = Callable[[Tensor], Tensor]
_BATCH = 50  # images that are encoded at a time


@dataclass(frozen=True)
class Subject:
    """Cells (Source first) with the results of those that were run, in the same order."""

    cells: Sequence[Cell]
    results: Sequence[Result | None]
    space: str = "embeddings"
    runs: Path = Path("runs")
    tell: Callable[[str, int, int], Any] = lambda *_: None

    def complete(self) -> list[tuple[Cell, Result]]:
        """Cells that were run, with their results."""
        return [(cell, result) for cell, result in zip(self.cells, self.results, strict=True) if result is not None]

    def describe(self) -> dict[str, Any]:
        """What the numbers depend on: method, settings and record of what was looked at; nothing without cells."""
        if not self.cells:
            return {}
        if found := self.complete():
            names = dict.fromkeys(cell.name for cell, _ in found)
            last, seeds = found[-1][1], sorted({cell.seed for cell, _ in found if cell.method != SOURCE})
            about = {"title": ", ".join(names), "seeds": seeds or [0]}
            return {**about, "method": last.method, "protocol": last.record}
        return Scene.open(self.adapting()[0]).describe()

    def adapting(self) -> list[Cell]:
        """Cells of methods that adapt."""
        return [cell for cell in self.cells if cell.method != SOURCE] or list(self.cells)


@dataclass(frozen=True)
class Scene:
    """A cell with its benchmark and its source model in memory."""

    cell: Cell
    benchmark: Benchmark
    model: VisionModel

    @classmethod
    def open(cls, cell: Cell) -> Scene:
        """Load what the cell needs."""
        benchmark, model = load_setup(cell.setup, find_device(cell.device).type)
        return cls(cell, cell.protocol.choose(benchmark), model)

    @property
    def stream(self) -> Stream:
        """The stream of the cell."""
        return self.cell.protocol.stream(self.benchmark, self.cell.batch_size)

    def adapter(self) -> Adapter:
        """The method as it stands before the first batch."""
        kind, cell = find_method(self.cell.method), self.cell
        preset = kind.preset(None if cell.preset == "none" else cell.preset)
        adapter = kind(self.model, **{**preset, **cell.fixed})
        warm_up(adapter, self.benchmark)
        return adapter

    def describe(self) -> dict[str, Any]:
        """Method, settings and record of the cell."""
        adapter, cell, fingerprint = self.adapter(), self.cell, self.model.fingerprint()
        preset = None if cell.preset == "none" else cell.preset
        told = describe_tuning(preset, dict(cell.settings), dict(cell.tuned))
        parts = (cell.protocol, self.benchmark, self.stream, adapter)
        record = make_record(*parts, tuning=told, fingerprint=fingerprint)
        method = {"name": adapter.name, "settings": plain_values(asdict(adapter.settings))}
        return {"title": cell.name, "seeds": [cell.seed], "method": method, "protocol": record.to_dict()}

    def adapted(self, result: Result) -> Adapter:
        """The method as its run left it."""
        if not (result.folder / "state").exists():
            raise UserError(f"{result.folder} has no state any more: delete the run folder, and it is made again")
        return load_adapted(result.folder, self.model)


def replay(scene: Scene, adapter: Adapter, tell: Callable[[str, int, int], Any]) -> Iterator[Batch]:
    """Go through the stream once more with an adapter; each batch comes after it was learnt from."""
    stream = scene.stream
    resets = scene.cell.protocol.resets == "domain"
    learning = sum(-(-len(block) // stream.batch_size) for block in stream.blocks if block.learn)
    for number in range(learning):
        batch = stream[number]
        if resets and number and stream.starts_domain(number):
            adapter.reset()
        adapter(batch.images)
        tell("going through the stream", number + 1, learning)
        yield batch


def need_testdg(adapter: Adapter) -> TestDG:
    """The adapter, if it has domain embeddings and prototypes."""
    if not isinstance(adapter, TestDG):
        raise UserError(f"{adapter.name} has no domain embeddings: use --space features, or testdg")
    return adapter


def before_and_after(subject: Subject) -> tuple[tuple[Domain, ...], dict[str, Encode]]:
    """The domains of the run that an analysis looks at, and what encodes their images, (N, D), before and after it.

    Embeddings are read by amplifier and extractor as they are at the end, so that only the encoder differs.
    """
    cell, result = subject.complete()[-1]
    scene = Scene.open(cell)
    domains, adapter = scene.benchmark.domains(), scene.adapted(result)
    if subject.space == "features":
        return domains, {"before": features_of(scene.model), "after": features_of(adapter.predicting_model())}
    testdg = need_testdg(adapter)
    return domains, {"before": lambda images: testdg.embed(images, scene.model), "after": testdg.embed}


def features_of(model: VisionModel) -> Encode:
    """The model's features, averaged over the places of a map."""
    if model.head is None:
        raise UserError(f"{model.name} has no layer that gives its logits, so its features are unknown")

    @torch.no_grad()
    def encode(images: Tensor) -> Tensor:
        features = model(model.prepare(images.to(model.device))).features
        return features.flatten(2).mean(2) if features.ndim == 4 else features  # type: ignore[no-any-return]

    return encode


def spaced(length: int, count: int) -> list[int]:
    """At most `count` numbers below `length`, evenly spaced."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(int)).tolist()  # type: ignore[no-any-return]


def encode_domain(encode: Encode, domain: Domain, indices: Sequence[int]) -> Array:
    """Points of some images of a domain, (N, D)."""
    parts = [indices[start : start + _BATCH] for start in range(0, len(indices), _BATCH)]
    points = [encode(domain.take(part)[0]).float().cpu() for part in parts]
    return torch.cat(points).double().numpy()
