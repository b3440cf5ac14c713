"""Analyses of costs and scores: time and memory of a batch, learnable parameters, an overview of run folders."""

import gc
import json
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from testdg.data.stream import Stream
from testdg.errors import UserError
from testdg.files import write_files
from testdg.methods import Adapter
from testdg.runs import Result, comparable, read_result
from testdg.runs.compare import by_key, grouped
from testdg.runs.session import open_run
from testdg.spec import RunSpec
from testdg.studies.analyses.subject import Numbers, Subject, adapted, warm_run
from testdg.studies.rows import method_title, settings_of_row, titled_rows, unusual
from testdg.studies.summary import spread

Make = Callable[[], Adapter]
Costs = dict[str, dict[str, Any]]
"""The costs of a leaderboard, by the run folder of the method."""
FILE = "cost.json"
WARM_UP = 3  # batches that are not timed
TIMED = 12
MOST = 6  # variants of one method in a panel of the overview


def compute_costs(subject: Subject) -> Numbers:
    """Milliseconds and mebibytes of a batch for every method, measured one after the other, and its mean score.

    Methods are measured as they are at the end of the stream: TestDG learns from prototypes only after a change.
    """
    rows = scores(subject)
    results = dict(subject.complete())
    for count, row in enumerate(rows, 1):
        spec = row.pop("spec")
        session = open_run(spec)
        make = partial(adapted, session, results[spec])
        subject.notify("measuring", count, len(rows))
        row |= measure(make, session.stream)
    about = session.model.device.type
    meaning = "allocated by CUDA" if about == "cuda" else "of live tensors"
    return {
        "metric": subject.complete()[0][1].metric.describe(),
        "device": about,
        "threads": torch.get_num_threads(),
        "batch_size": session.stream.batch_size,
        "memory": f"peak {meaning}, model included",
        "rows": rows,
    }


def read_costs(folder: Path) -> Costs:
    """Costs that were measured before; empty if the file is missing or damaged."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {str(name): dict(values) for name, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def measure_costs(
    runs: Sequence[tuple[RunSpec, Result]], folder: Path, notify: Callable[[str, int, int], object] = lambda *_: None
) -> Costs:
    """Measure what is not known yet, one after the other, and store it; nothing else should run meanwhile."""
    costs = read_costs(folder)
    for count, (spec, result) in enumerate(runs, 1):
        notify("measuring", count, len(runs))
        if result.folder.name not in costs:
            costs[result.folder.name] = measure_run(spec, result)
            write_files(folder, {FILE: (json.dumps(costs, indent=1) + "\n").encode()})
    return costs


def measure_run(spec: RunSpec, result: Result) -> dict[str, Any]:
    """The cost of a method at the end of its run if the state is stored, otherwise at its start."""
    session = open_run(spec)
    stored = (result.folder / "state").exists()
    make: Make = partial(adapted, session, result) if stored else lambda: warm_run(spec).adapter
    adapter = make()
    return {
        "device": session.model.device.type,
        "batch_size": spec.batch_size,
        "parameters": sum(parameter.numel() for parameter in adapter.trainable().values()),
        "source_images": adapter.source_images(),
        "source_labels": bool(adapter.source_images()) and adapter.source_labels,
        **measure(make, session.stream),
    }


def measure(make: Make, stream: Stream) -> dict[str, float]:
    return {**latency(make, stream), "memory_mib": memory(make, stream) / 2**20}


def last_images(stream: Stream, count: int) -> list[Tensor]:
    """Images of the last batches of a stream, which is repeated if it is short."""
    return [stream[number % len(stream)].images for number in range(len(stream) - count, len(stream))]


def latency(make: Make, stream: Stream) -> dict[str, float]:
    """Median and quartiles of the time that a batch takes, in milliseconds; the stream is read before."""
    adapter, times = make(), []
    for images in last_images(stream, WARM_UP + TIMED):
        _wait(adapter.model.device)
        begun = time.perf_counter()
        adapter(images)
        _wait(adapter.model.device)
        times.append(time.perf_counter() - begun)
    low, median, high = statistics.quantiles(times[WARM_UP:], n=4)
    return {"ms": 1000 * median, "ms_low": 1000 * low, "ms_high": 1000 * high}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(make: Make, stream: Stream) -> int:
    """Peak memory in bytes of a method and its model while they learn from the second and third batch."""
    first, *others = last_images(stream, 3)
    gc.collect()
    before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0  # without the source model
    adapter = make()
    adapter(first)  # allocates the moments of optimisers
    if adapter.model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(adapter.model.device)
        for images in others:
            adapter(images)
        return torch.cuda.max_memory_allocated(adapter.model.device) - before
    state = sum(tensor.nbytes for tensor in adapter.tensors().values())
    return state + max(peak_bytes(partial(adapter, images)) for images in others)


def peak_bytes(work: Callable[[], object]) -> int:
    """Peak memory in bytes of the tensors that some work allocates."""
    with _Watch() as watch:
        work()
    return int(watch.peak)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages from their allocation until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {_key(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and (key := _key(tensor)) not in before and key not in self.alive:
                self._allocated(key, tensor.untyped_storage())
        return made

    def _allocated(self, key: int, storage: torch.UntypedStorage) -> None:
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def _key(tensor: Tensor) -> int:
    """The identity of a storage while it is alive."""
    return int(tensor.untyped_storage()._cdata)


# Learnable parameters


def compute_parameters(subject: Subject) -> Numbers:
    """Learnable parameters of every method, and its mean score."""
    rows = scores(subject)
    for row in rows:
        adapter = warm_run(row.pop("spec")).adapter
        row["parameters"] = sum(parameter.numel() for parameter in adapter.trainable().values())
    total = sum(parameter.numel() for parameter in adapter.model.parameters())
    return {"metric": subject.complete()[0][1].metric.describe(), "model_parameters": total, "rows": rows}


def scores(subject: Subject) -> list[Numbers]:
    """Name, first run, mean score and its deviation over seeds, for every method."""
    rows = []
    for name, mine in by_key((pair[0].name, pair) for pair in subject.complete()).items():
        values = [result.mean_score for _, result in mine]
        value = spread([one for one in values if one is not None])
        about = {"name": name, "method": mine[0][0].method, "spec": mine[0][0], "runs": len(mine)}
        rows.append({**about, "score": value.mean, "deviation": value.deviation})
    return rows


# Overview


def compute_overview(subject: Subject) -> Numbers:
    """Mean scores of every method in every group of runs that can be compared, and the damaged runs."""
    results, damaged = read_runs(subject.runs)
    return {"groups": [_about(group) for group in comparable_groups(results)], "damaged": damaged}


def read_runs(folder: Path) -> tuple[list[Result], list[str]]:
    """The results of all complete runs in a folder, and a sentence for each that is damaged."""
    results, damaged = [], []
    for place in sorted(path.parent for path in folder.glob("*/result.json")):
        try:
            results.append(read_result(place))
        except UserError as error:
            damaged.append(str(error))
    if not results:
        none = f"{folder} holds no complete runs: name their parent folder with --runs, or run a bench first"
        raise UserError("; ".join([none, *damaged]), code="no-runs")
    return results, damaged


def comparable_groups(results: Sequence[Result]) -> list[list[Result]]:
    """Groups of runs that can be compared, the largest first."""
    return sorted(grouped(results, comparable), key=len, reverse=True)


def _about(group: Sequence[Result]) -> Numbers:
    first = group[0]
    variants = grouped(group, lambda one, other: _variant(one) == _variant(other))
    rows = [_row(runs, name) for name, runs in _most_usual(titled_rows(variants))]
    rows.sort(key=lambda row: row["score"], reverse=first.metric.higher)
    keys = ("benchmark", "kind", "order", "model", "images_per_domain", "batch_size")
    about = {key: first.record[key] for key in keys}
    return {**about, "metric": first.metric.describe(), "rows": rows}


def _variant(result: Result) -> tuple[str, dict[str, Any]]:
    """The identity of a variant, whose runs differ in their seeds."""
    return result.method["name"], settings_of_row(result)


def _most_usual(rows: Sequence[tuple[str, list[Result]]]) -> list[tuple[str, list[Result]]]:
    """The variants of every method; if they are more than `MOST`, only the most usual one, with their number."""
    shown = []
    for method, mine in by_key((row[1][0].method["name"], row) for row in rows).items():
        if len(mine) > MOST:
            settings = [settings_of_row(runs[0]) for _, runs in mine]
            usual = min(range(len(mine)), key=lambda number: len(unusual(settings[number], settings, method)))
            shown.append((f"{method_title(method)}, of {len(mine)} variants", mine[usual][1]))
        else:
            shown += mine
    return shown


def _row(found: Sequence[Result], name: str) -> Numbers:
    runs = list({run.record["seed"]: run for run in found}.values())  # there may be copies of a run
    values = [run.mean_score for run in runs if run.mean_score is not None]
    tested = [run.held_out_score for run in runs if run.held_out_score is not None]
    value = spread(values)
    held_out = spread(tested).mean if tested else None
    about = {"name": name, "method": runs[0].method["name"], "runs": len(runs)}
    return {**about, "score": value.mean, "deviation": value.deviation, "held_out": held_out}
