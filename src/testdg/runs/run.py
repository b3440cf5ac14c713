"""`run`: one method on one benchmark, resumable, with a run folder."""

import time
from pathlib import Path
from typing import Any

from torch import nn

from testdg.data.benchmarks import Benchmark
from testdg.errors import UserError
from testdg.runs.folder import RunFolder, read_events, run_name
from testdg.runs.loop import graceful_interrupt, run_stream
from testdg.runs.observer import Observer, RunProgress
from testdg.runs.protocol import Protocol
from testdg.runs.result import Result
from testdg.runs.session import RunSession, open_run
from testdg.schema import check_keys, check_value, field_types
from testdg.spec import RunSpec
from testdg.version import versions


def run(
    benchmark: str | Benchmark = "digits-c",
    method: str = "testdg_aligned",
    *,
    model: str | Path | nn.Module | None = None,
    protocol: str | Path | Protocol | None = None,
    out: str | Path = "runs",
    observer: Observer | None = None,
    **choices: Any,
) -> Result:
    """Adapt a model to a benchmark's stream and return the scores.

    A run that was stopped resumes from its folder under `out`, and a complete one is read back.

    Args:
        benchmark: The name of a benchmark, or a benchmark from `load_benchmark`.
        method: The name of a method.
        model: Whatever `load_model` takes; an embedded benchmark has one of its own.
        protocol: A name, a TOML file or a value (docs/protocols.md); left out, the benchmark's own.
        out: The folder that run folders lie in.
        observer: Notified of the progress.
        **choices: Other fields of `RunSpec`: data, settings, preset, source, guard, seed, batch_size, device, images,
            severity, domains, save_every, ...

    Examples:
        >>> from testdg.runs import run
        >>> result = run("digits-c", "testdg_aligned", images=100, domains=["snow", "frost"])
        >>> for domain in result.domains:
        ...     print(f"{domain.name} {domain.error:.1f} %")
        snow 9.0 %
        frost 10.0 %
    """
    objects: dict[str, Any] = {}
    if isinstance(benchmark, Benchmark):
        objects["benchmark"], benchmark = benchmark, benchmark.name
    if isinstance(model, nn.Module):
        objects["model"], model = model, None
    if isinstance(protocol, Protocol):
        choices["stream"], protocol = protocol, protocol.name
    given = {"benchmark": benchmark, "method": method, "model": model, "protocol": protocol, **choices}
    known = field_types(RunSpec)
    check_keys(given, known)
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
    spec = RunSpec(**{key: check_value(known[key], key, value) for key, value in texts.items()})
    return run_session(open_run(spec, observer, **objects), Path(out), observer)


def run_session(session: RunSession, out: Path, observer: Observer | None = None) -> Result:
    """Run a session to the end of its stream, or read the result that its folder under `out` has."""
    config, observer = session.config(), observer or Observer()
    folder = RunFolder(out / run_name(config), config)
    visits = session.protocol.visits(session.benchmark)
    progress = RunProgress(session.adapter.name, session.record, visits, len(session.stream))
    observer.opened(folder.path)
    result = folder.result()
    if result is None:
        session.require_source()  # what is missing is reported before a folder is made
        with folder.open():
            result = folder.result() or _follow(session, folder, progress, observer)
    if not progress.started:
        progress.resume(read_events(folder.path))
        observer.started(progress)
    observer.finished(result)
    return result


def _follow(session: RunSession, folder: RunFolder, progress: RunProgress, observer: Observer) -> Result:
    """Run from where the folder resumes to the end of the stream, and write the result."""
    resumed = folder.resume(session)
    begun = time.monotonic() - resumed.seconds
    progress.resume(resumed.entries)
    observer.started(progress)
    session.warm_up()
    with graceful_interrupt() as stop:
        score, every = progress.tally.score, session.spec.save_every
        for entries, save in run_stream(session, score, start=progress.done, save_every=every, stop=stop):
            folder.append(entries)
            progress.add(entries)
            observer.advanced(progress, entries)
            if save:
                folder.save(session.online, progress.done, time.monotonic() - begun)
    source = session.source_folder
    if progress.done != len(session.stream):
        raise UserError(f"{folder.path} has {progress.done} of {len(session.stream)} batches", code="damaged-folder")
    result = Result(
        record=folder.config["protocol"],
        method=folder.config["method"],
        domains=progress.tally.results(learn=True),
        held_out=progress.tally.results(learn=False) if session.record["held_out"] else None,
        seconds=round(time.monotonic() - begun, 3),
        versions=versions(),
        folder=folder.path,
        skipped=len(session.benchmark.unreadable()),
        skipped_updates=session.adapter.skipped,
        guard=None if (counts := session.online.guard_counts) is None else dict(counts),
        source=None if source is None else str(source),
        classes=session.benchmark.classes if session.model.task == "segmentation" else (),
    )
    folder.finish(result)
    return result
