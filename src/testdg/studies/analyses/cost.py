"""What adaptation costs: time and memory of a batch, against the error, and for every row of a leaderboard."""

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
from testdg.files import write_files
from testdg.methods import Adapter
from testdg.runs import Result
from testdg.runs.session import open_run
from testdg.spec import RunSpec
from testdg.studies.analyses.parameters import scores
from testdg.studies.analyses.subject import Numbers, Subject, adapted, warm_run

Make = Callable[[], Adapter]
Costs = dict[str, dict[str, Any]]
"""Of a leaderboard, by the folder of the run that was measured."""
FILE = "cost.json"
WARM_UP = 3  # batches before the clock runs
TIMED = 12


def compute(subject: Subject) -> Numbers:
    """Milliseconds and mebibytes of a batch for every method as its run left it, one after the other; its mean score.

    At the end of the stream a method does all that it does: TestDG learns from prototypes only after a change.
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
    """Costs that were measured before; none where there is no file that can be read."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {str(name): dict(values) for name, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def measure_costs(
    runs: Sequence[tuple[RunSpec, Result]], folder: Path, notify: Callable[[str, int, int], Any] = lambda *_: None
) -> Costs:
    """Measure what is not known yet, one after the other, and keep it; nothing else should run meanwhile."""
    costs = read_costs(folder)
    for count, (spec, result) in enumerate(runs, 1):
        notify("measuring", count, len(runs))
        if result.folder.name not in costs:
            costs[result.folder.name] = measure_run(spec, result)
            write_files(folder, {FILE: (json.dumps(costs, indent=1) + "\n").encode()})
    return costs


def measure_run(spec: RunSpec, result: Result) -> dict[str, Any]:
    """The cost of a method, as its run left it where that was kept, else from its start."""
    session = open_run(spec)
    kept = (result.folder / "state").exists()
    make: Make = partial(adapted, session, result) if kept else lambda: warm_run(spec).adapter
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
    """Time and memory of a batch."""
    return {**latency(make, stream), "memory_mib": memory(make, stream) / 2**20}


def last_images(stream: Stream, count: int) -> list[Tensor]:
    """Images of the last batches of a stream, which begins anew where it is short."""
    return [stream[number % len(stream)].images for number in range(len(stream) - count, len(stream))]


def latency(make: Make, stream: Stream) -> dict[str, float]:
    """Median and quartiles of the time that a batch takes, in milliseconds; the stream is read beforehand."""
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
    """Most bytes that a method and its model have in use while the second and third batch are learnt from."""
    first, *others = last_images(stream, 3)
    gc.collect()
    before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0  # the source model is not the method's
    adapter = make()
    adapter(first)  # makes the moments of optimisers
    if adapter.model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(adapter.model.device)
        for images in others:
            adapter(images)
        return torch.cuda.max_memory_allocated(adapter.model.device) - before
    held = sum(tensor.nbytes for tensor in adapter.tensors().values())
    return held + max(peak_bytes(partial(adapter, images)) for images in others)


def peak_bytes(work: Callable[[], Any]) -> int:
    """Most bytes of tensors, made by some work, that were alive at one time."""
    with _Watch() as watch:
        work()
    return int(watch.peak)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages from when an operation makes them until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {_key(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and (key := _key(tensor)) not in before and key not in self.alive:
                self._born(key, tensor.untyped_storage())
        return made

    def _born(self, key: int, storage: torch.UntypedStorage) -> None:
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._died, key)

    def _died(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def _key(tensor: Tensor) -> int:
    """What tells one storage from another as long as it lives."""
    return int(tensor.untyped_storage()._cdata)
