"""`run`: one method on one benchmark, resumable, with a run folder."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from testdg.core.guard import guard as put_guard
from testdg.core.guard.health import IMAGES
from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.data.stream import Stream
from testdg.methods import Adapter, find_method
from testdg.models.device import find_device
from testdg.runs.events import Event
from testdg.runs.folder import RunFolder, run_name
from testdg.runs.interrupts import noticed
from testdg.runs.loop import run_stream
from testdg.runs.observer import Observer
from testdg.runs.protocol import Protocol, read_protocol
from testdg.runs.record import Record, make_record, plain_values
from testdg.runs.result import Result, Tally
from testdg.runs.scores import find_score
from testdg.runs.source import probe_images, source_batches, source_model, warm_up
from testdg.version import versions

SAVE_EVERY = 60.0  # seconds between two saved states


def run(
    benchmark: str | Benchmark = "digits-c",
    method: str = "testdg_aligned",
    *,
    model: str | Path | nn.Module | None = None,
    data: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    tuned: Mapping[str, str] | None = None,
    protocol: str | Path | Protocol | None = None,
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

    A run that was stopped goes on where its folder under `out` left off, and a complete one is read back.

    Args:
        benchmark: The name of a benchmark, or what `load_benchmark` gives.
        method: The name of a method.
        model: Whatever `load_model` takes; an embedded benchmark has one of its own.
        data: The data folder of the benchmark.
        settings: Settings of the method; they win over those of the preset.
        preset: The published settings of a benchmark ("none" for the method's defaults); left out, an embedded
            benchmark applies its own.
        protocol: A name, a TOML file or a value (docs/protocols.md); left out, the benchmark's own.
        tuned: Of settings that were searched for, which file has the choice.
        batch_size: Images of a batch; left out, the benchmark's own.
        device: Where the model runs; "auto" takes a GPU where there is one.
        source: A folder of clean images for methods that measure the source, in place of the benchmark's training
            images.
        guard: Put a guard around the method, with a few clean images of the source as its probe; the record says so.
        out: The folder that run folders lie in.
        observer: Hears what happens meanwhile.
        save_every: Seconds between two saved states.
        **options: Those of the benchmark: images, severity, domains, corruption_seed.

    Examples:
        >>> from testdg.runs import run
        >>> result = run("digits-c", "testdg_aligned", images=100, domains=["snow", "frost"])
        >>> for domain in result.domains:
        ...     print(f"{domain.name} {domain.error:.1f} %")
        snow 9.0 %
        frost 10.0 %
    """
    observer = observer or Observer()
    method_class = find_method(method)
    bench = load_benchmark(benchmark, data, **options) if isinstance(benchmark, str) else benchmark
    shown = read_protocol(bench.protocol if protocol is None else protocol)
    bench = shown.choose(bench)
    shown.stream(bench, batch_size)  # mistakes first
    fixed, chosen = dict(settings or {}), choose_preset(method_class, bench, preset)
    values = {**method_class.preset(chosen), **fixed}
    adapted = source_model(bench, model, device=find_device(device), observer=observer)
    stream = shown.stream(bench, batch_size)
    adapter: Any = method_class(adapted, **values)
    folder = None if source is None or not (guard or adapter.source_images()) else Path(source)
    remarks = [describe_tuning(chosen, fixed, tuned or {}), *adapter.remarks()]
    remarks += [f"source images of {folder}"] if folder else []
    remarks += ["with a guard"] if guard else []
    told, fingerprint = "; ".join(remarks), adapted.fingerprint()
    about = make_record(shown, bench, stream, adapter, tuning=told, fingerprint=fingerprint)
    if guard:  # it is used as the adapter itself
        adapter = put_guard(adapter, probe_images(bench, folder, IMAGES[adapted.task]))
    return _Run(adapter, bench, stream, about, shown, Path(out), observer, save_every, folder).result()


def choose_preset(method: type[Adapter], benchmark: Benchmark, wanted: str | None) -> str | None:
    """Name the preset to apply: the one that was asked for; by itself only an embedded benchmark's own."""
    if wanted is not None:
        return None if wanted == "none" else wanted
    return benchmark.name if benchmark.embedded and benchmark.name in method.presets else None


def describe_tuning(preset: str | None, fixed: Mapping[str, Any], tuned: Mapping[str, str]) -> str:
    """Say where the settings come from."""
    parts = [f"the method's preset for {preset}" if preset else "the method's defaults"]
    for file in dict.fromkeys(tuned.values()):
        parts.append(f"chosen in {file}: {', '.join(sorted(key for key, one in tuned.items() if one == file))}")
    if chosen := sorted(fixed.keys() - tuned.keys() - {"seed", "precision"}):
        parts.append(f"chosen by the user: {', '.join(chosen)}")
    return "; ".join(parts)


def tell_guard(adapter: Any) -> dict[str, int] | None:
    """How often a guard did what; None where there is none."""
    found: dict[str, int] | None = adapter.guard_counts
    return found


@dataclass
class _Run:
    """One run, from whatever its folder holds to its result."""

    adapter: Adapter
    benchmark: Benchmark
    stream: Stream
    record: Record
    protocol: Protocol
    out: Path
    observer: Observer
    save_every: float
    source: Path | None
    complete: Result | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.score = find_score(self.record.task)
        method = {"name": self.adapter.name, "settings": plain_values(asdict(self.adapter.settings))}
        config = {"protocol": self.record.to_dict(), "method": method}
        self.folder = RunFolder(self.out / run_name(config), config)

    def result(self) -> Result:
        """Give the result that is there, or run to the end."""
        with ExitStack() as held:
            if (done := self._open(held)) is not None:
                self._go_on(done)
            return self._close()

    def _open(self, held: ExitStack) -> int | None:
        """Batches behind the run, to which the adapter is brought; None where it is complete."""
        self.observer.opened(self.folder.path)
        self.complete = self.folder.result()
        if self.complete is None:
            source_batches(self.adapter, self.benchmark, self.source)  # tells what is missing before a folder is made
            held.enter_context(self.folder.held())
            self.complete = self.folder.result()
        if self.complete is not None:
            self._tell_start(len(self.stream))
            return None
        done, self.seconds = self.folder.resume(self.adapter)
        self._begun = time.monotonic()
        self._tell_start(done)
        warm_up(self.adapter, self.benchmark, self.source)
        return done

    def _go_on(self, done: int) -> None:
        """Run from a batch to the end of the stream, from the state at hand."""
        with noticed() as stop:
            run_stream(
                self.adapter,
                self.stream,
                self.score,
                resets=self.protocol.resets == "domain",
                views=self.protocol.make_views(),
                start=done,
                write=self._write,
                save=self._save,
                save_every=self.save_every,
                stop=stop,
            )

    def _close(self) -> Result:
        """Write the result, if it was not there, and tell it."""
        if self.complete is None:
            self.complete = self._summary()
            self.folder.finish(self.complete)
        self.observer.finished(self.complete)
        return self.complete

    def _tell_start(self, done: int) -> None:
        self.observer.started(self.adapter.name, self.record, len(self.stream), self.folder.events(done))

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self._begun

    def _write(self, events: list[Event]) -> None:
        self.folder.append(events)
        self.observer.progress(events)

    def _save(self, batches: int) -> None:
        self.folder.save(self.adapter, batches, self._elapsed())

    def _summary(self) -> Result:
        tally = Tally(self.score, self.record.visits())
        tally.add(self.folder.events(len(self.stream)))
        return Result(
            record=self.folder.config["protocol"],
            method=self.folder.config["method"],
            domains=tally.results(learn=True),
            held_out=tally.results(learn=False) if self.record.held_out else None,
            seconds=round(self._elapsed(), 3),
            versions=versions(),
            folder=self.folder.path,
            skipped=len(self.benchmark.unreadable()),
            skipped_updates=self.adapter.skipped,
            guard=tell_guard(self.adapter),
            source=None if self.source is None else str(self.source),
            classes=self.benchmark.classes if self.record.task == "segmentation" else (),
        )
