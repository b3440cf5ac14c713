"""`run`: one method on one benchmark, resumable, with a run folder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.data.stream import Stream
from testdg.evaluation.device import find_device
from testdg.evaluation.events import Event
from testdg.evaluation.folder import RunFolder, run_name
from testdg.evaluation.guarding import put_guard, tell_guard
from testdg.evaluation.interrupts import noticed
from testdg.evaluation.loop import run_stream
from testdg.evaluation.observer import Observer
from testdg.evaluation.plan import Plan
from testdg.evaluation.plans import read_plan
from testdg.evaluation.protocol import Protocol, make_protocol, plain_values
from testdg.evaluation.result import Result, Tally, versions
from testdg.evaluation.scores import find_score
from testdg.evaluation.source_model import source_model
from testdg.evaluation.warm_up import source_batches, warm_up
from testdg.methods import Adapter, find_method

SOURCE_FOLDER = "source images of "
SAVE_EVERY = 60.0  # seconds between two saved states


def run(
    benchmark: str | Benchmark = "digits-c",
    method: str = "testdg_aligned",
    *,
    model: str | Path | nn.Module | None = None,
    data: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    protocol: str | Path | Plan | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    source: str | Path | None = None,
    guard: bool = False,
    out: str | Path = "runs",
    observer: Observer | None = None,
    save_every: float = SAVE_EVERY,
    **options: Any,
) -> Result:
    """Adapt a model to a benchmark's stream and give the scores.

    `protocol` is a name, a TOML file or a plan (docs/protocols.md); left out, the benchmark's own. `preset` names the
    published settings of a benchmark ("none" for the method's defaults; left out, an embedded benchmark applies its
    own), and `settings` win over it. `source` is a folder of clean images for methods that measure the source, in
    place of the benchmark's training images. `guard` puts a guard around the method, as part of the protocol, with a
    few clean images of the source as its probe. `options` are those of the benchmark (images, severity, domains,
    corruption_seed). A run that was stopped goes on where its folder under `out` left off, and a complete one is read
    back.
    """
    observer = observer or Observer()
    kind = find_method(method)
    bench = load_benchmark(benchmark, data, **options) if isinstance(benchmark, str) else benchmark
    plan = read_plan(bench.protocol if protocol is None else protocol)
    bench = plan.choose(bench)
    plan.stream(bench, batch_size)  # mistakes first
    fixed, chosen = dict(settings or {}), choose_preset(kind, bench, preset)
    values = {**kind.preset(chosen), **fixed}
    adapted = source_model(bench, model, device=find_device(device), observer=observer)
    stream = plan.stream(bench, batch_size)
    adapter = kind(adapted, **values)
    folder = None if source is None or not (guard or adapter.source_images()) else Path(source)
    remarks = [describe_tuning(chosen, fixed), *adapter.remarks(), *([f"{SOURCE_FOLDER}{folder}"] if folder else [])]
    remarks += ["with a guard"] if guard else []
    about = make_protocol(plan, bench, stream, adapter, tuning="; ".join(remarks), fingerprint=adapted.fingerprint())
    adapter = put_guard(adapter, bench, folder) if guard else adapter
    return _Run(adapter, bench, stream, about, plan, Path(out), observer, save_every, folder).result()


def choose_preset(method: type[Adapter], benchmark: Benchmark, wanted: str | None) -> str | None:
    """Name the preset to apply: the one that was asked for; by itself only an embedded benchmark's own."""
    if wanted is not None:
        return None if wanted == "none" else wanted
    return benchmark.name if benchmark.embedded and benchmark.name in method.presets else None


def describe_tuning(preset: str | None, fixed: Mapping[str, Any]) -> str:
    """Say where the settings come from."""
    base = f"the method's preset for {preset}" if preset else "the method's defaults"
    chosen = sorted(fixed.keys() - {"seed", "precision"})
    return f"{base}; chosen by the user: {', '.join(chosen)}" if chosen else base


class _Run:
    """One run, from whatever its folder holds to its result."""

    def __init__(
        self,
        adapter: Adapter,
        benchmark: Benchmark,
        stream: Stream,
        protocol: Protocol,
        plan: Plan,
        out: Path,
        observer: Observer,
        save_every: float,
        source: Path | None = None,
    ) -> None:
        self.source = source
        self.adapter, self.benchmark, self.stream, self.protocol = adapter, benchmark, stream, protocol
        self.plan, self.observer, self.save_every = plan, observer, save_every
        self.score = find_score(protocol.task)
        method = {"name": adapter.name, "settings": plain_values(dataclasses.asdict(adapter.settings))}
        config = {"protocol": protocol.to_dict(), "method": method}
        self.folder = RunFolder(out / run_name(config), config)
        self.seconds = 0.0

    def result(self) -> Result:
        """Give the result that is there, or run to the end."""
        self.observer.opened(self.folder.path)
        found = self.folder.result()
        if found is None:
            source_batches(self.adapter, self.benchmark, self.source)  # tells what is missing before a folder is made
            with self.folder.held():
                found = self.folder.result() or self._finish()
        else:
            self._tell_start(len(self.stream))
        self.observer.finished(found)
        return found

    def _finish(self) -> Result:
        done, before = self.folder.resume(self.adapter)
        self.seconds, self._begun = before, time.monotonic()
        self._tell_start(done)
        warm_up(self.adapter, self.benchmark, self.source)
        with noticed() as stop:
            run_stream(
                self.adapter,
                self.stream,
                self.score,
                resets=self.plan.resets == "domain",
                views=self.plan.looks(),
                start=done,
                write=self._write,
                save=self._save,
                save_every=self.save_every,
                stop=stop,
            )
        result = self._summary()
        self.folder.finish(result)
        return result

    def _tell_start(self, done: int) -> None:
        self.observer.started(self.adapter.name, self.protocol, len(self.stream), self.folder.events(done))

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self._begun

    def _write(self, events: list[Event]) -> None:
        self.folder.append(events)
        self.observer.progress(events)

    def _save(self, batches: int) -> None:
        self.folder.save(self.adapter, batches, self._elapsed())

    def _summary(self) -> Result:
        tally = Tally(self.score, self.protocol.visits())
        tally.add(self.folder.events(len(self.stream)))
        return Result(
            protocol=self.folder.config["protocol"],
            method=self.folder.config["method"],
            domains=tally.results(learn=True),
            held_out=tally.results(learn=False) if self.protocol.held_out else None,
            seconds=round(self._elapsed(), 3),
            versions=versions(),
            folder=self.folder.path,
            skipped=len(self.benchmark.unreadable()),
            skipped_updates=self.adapter.skipped,
            guard=tell_guard(self.adapter),
            classes=self.benchmark.classes if self.protocol.task == "segmentation" else (),
        )
