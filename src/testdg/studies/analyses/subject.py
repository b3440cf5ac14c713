"""The subject of an analysis: runs and their results; adapters before, during and after the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testdg.data.stream import Batch, Domain
from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.methods.testdg import TestDG
from testdg.models import VisionModel
from testdg.runs import Result
from testdg.runs.folder import load_adapted
from testdg.runs.session import RunSession, open_run
from testdg.spec import SOURCE, RunSpec

Array = np.ndarray[Any, np.dtype[Any]]
Numbers = dict[str, Any]
Encode = Callable[[Tensor], Tensor]
_BATCH = 50  # images that are encoded together


@dataclass(frozen=True)
class Subject:
    """Runs (Source first) with the results of those that were computed, in the same order."""

    specs: Sequence[RunSpec]
    results: Sequence[Result | None]
    space: str = "embeddings"
    runs: Path = Path("runs")
    notify: Callable[[str, int, int], object] = lambda *_: None

    def complete(self) -> list[tuple[RunSpec, Result]]:
        """Runs with a result."""
        pairs = zip(self.specs, self.results, strict=True)
        return [(spec, result) for spec, result in pairs if result is not None]

    def describe(self) -> dict[str, Any]:
        """What the numbers depend on: method, settings and record of the runs; empty without runs."""
        if not self.specs:
            return {}
        if found := self.complete():
            names = dict.fromkeys(spec.name for spec, _ in found)
            last, seeds = found[-1][1], sorted({spec.seed for spec, _ in found if spec.method != SOURCE})
            about = {"title": ", ".join(names), "seeds": seeds or [0]}
            return {**about, "method": last.method, "protocol": last.record}
        spec = self.adapting()[0]
        config = open_run(spec).config()
        return {"title": spec.name, "seeds": [spec.seed], "method": config["method"], "protocol": config["protocol"]}

    def adapting(self) -> list[RunSpec]:
        """Runs of methods that adapt; those of Source if there are no others."""
        return [spec for spec in self.specs if spec.method != SOURCE] or list(self.specs)


def adapted(session: RunSession, result: Result) -> Adapter:
    """The method at the end of its run."""
    return load_adapted(result.folder, session.model).adapter


def replay(session: RunSession, notify: Callable[[str, int, int], object]) -> Iterator[Batch]:
    """Run the stream of a warmed-up session; each batch is yielded after the method has learnt from it."""
    stream, resets = session.stream, session.protocol.resets == "domain"
    learning = sum(-(-len(block) // stream.batch_size) for block in stream.blocks if block.learn)
    for number in range(learning):
        batch = stream[number]
        if resets and number and stream.starts_domain(number):
            session.online.reset()
        session.step(batch.images)
        notify("going through the stream", number + 1, learning)
        yield batch


def warm_run(spec: RunSpec) -> RunSession:
    """A session before the first batch."""
    session = open_run(spec)
    session.warm_up()
    return session


def before_and_after(subject: Subject) -> tuple[tuple[Domain, ...], dict[str, Encode]]:
    """The domains of the run, and encoders of their images, (N, D), before and after it.

    Both encoders of embeddings have the amplifier and the extractor of the end, so that only the model differs.
    """
    spec, result = subject.complete()[-1]
    session = open_run(spec)
    domains, adapter = session.benchmark.domains(), adapted(session, result)
    if subject.space == "features":
        return domains, {"before": features_of(session.model), "after": features_of(adapter.predicting_model())}
    assert isinstance(adapter, TestDG)  # `Analysis.choose` has refused others
    return domains, {"before": lambda images: adapter.embed(images, session.model), "after": adapter.embed}


def features_of(model: VisionModel) -> Encode:
    """The model's features, averaged over the places of a map."""
    if model.head is None:
        raise UserError(f"{model.name} has no layer that gives its logits, so its features are unknown", code="no-head")

    @torch.no_grad()
    def encode(images: Tensor) -> Tensor:
        features = model(model.prepare(images.to(model.device))).features
        return features.flatten(2).mean(2) if features.ndim == 4 else features  # type: ignore[no-any-return]

    return encode


def spaced(length: int, count: int) -> list[int]:
    """At most `count` numbers below `length`, evenly spaced."""
    places = np.linspace(0, length - 1, min(count, length)).round()
    return sorted({int(place) for place in places})


def encode_domain(encode: Encode, domain: Domain, indices: Sequence[int]) -> Array:
    """Points of some images of a domain, (N, D)."""
    parts = [indices[start : start + _BATCH] for start in range(0, len(indices), _BATCH)]
    points = [encode(domain.take(part)[0]).float().cpu() for part in parts]
    return torch.cat(points).double().numpy()
