"""Models, images, bad batches, a full disk and runs that can be killed, for soak.py."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from testdg.core.guard import guard
from testdg.data.benchmarks import load_benchmark
from testdg.methods import find_method
from testdg.models import VisionModel, load_model
from testdg.models.segformer import random_segformer
from testdg.runs import source_model
from testdg.runs.session import Session
from testdg.runs.source import TrainingImages

PROBE = 20
"""Images of a guard's probe: so few that it is passed often."""


class Case(NamedTuple):
    """Whose lives they are."""

    benchmark: str
    method: str
    guarded: bool

    def __str__(self) -> str:
        """As failures name it."""
        return f"{self.method} on {self.benchmark}{' with a guard' if self.guarded else ''}"


class Scene(NamedTuple):
    """What lives on a benchmark are made of; steps on street scenes are slow, so there are fewer."""

    domains: tuple[str, ...]
    images: int
    """Images of a domain that batches are drawn from."""
    largest: int
    """Images of a batch, at most."""
    walk: int
    """Batches between two events, at most."""
    calm: int
    """Steps between two looks at the memory."""
    run: dict[str, int]
    """Size of the runs that are killed, on three domains."""


NOISY = ("gaussian_noise", "motion_blur", "fog", "contrast", "brightness", "jpeg_compression")
WEATHER = ("fog", "night", "rain", "snow")
SCENES = {
    "digits-c": Scene(NOISY, 200, 6, 4, 12, {"images": 20, "batch_size": 4}),
    "streets": Scene(WEATHER, 40, 1, 1, 4, {"images": 2, "batch_size": 1}),
}
REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "NaN": lambda x: torch.cat([x, x[:1] * float("nan")]),
    "infinity": lambda x: x + float("inf"),
    "0 to 255": lambda x: x * 254 + 1.5,
    "negative": lambda x: x - 1.5,
    "bytes": lambda x: (x * 255).byte(),
    "two channels": lambda x: x[:, :2],
    "one image": lambda x: x[0],
    "empty": lambda x: x[:0],
    "an array": lambda x: x.numpy(),
}
ACCEPTED: dict[str, Callable[[Tensor], Tensor]] = {
    "black": torch.zeros_like,
    "white": torch.ones_like,
    "grey": lambda x: torch.full_like(x, 0.5),
    "saturated": lambda x: (x > 0.5).float(),
    "noise": lambda x: torch.rand(x.shape, generator=torch.Generator().manual_seed(int(x.sum()))),
    "one frame": lambda x: x[:1].expand(len(x) + 2, -1, -1, -1),
    "doubles": lambda x: x.double(),
    "halves": lambda x: x.half(),
}
"""Garbage: what must be refused, and what must be survived."""

NURSERY = """
import json, os, signal, sys, time, traceback
from pathlib import Path
from testdg.data.benchmarks import load_benchmark
from testdg.runs import run
from testdg.models import load_model
for folder in sys.argv[1:]:
    load_model(folder)
    load_benchmark(Path(folder).name).train()
for line in sys.stdin:
    options, rows, freeze, after = json.loads(line)
    child = os.fork()
    if not child:
        try:
            run(**options)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    ended = lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    written = lambda: sum(p.read_bytes().count(b"\\n") for p in Path(options["out"]).glob("*/events.jsonl"))
    while written() < rows and not ended():
        time.sleep(0.001)
    for wait, number in ((freeze, signal.SIGSTOP), (0.01, signal.SIGCONT), (after, signal.SIGKILL)):
        time.sleep(wait)
        os.kill(child, number)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process that has imported everything and makes a child of itself for each run, so that none waits for torch."""


def source(name: str) -> VisionModel:
    """The model of the digits; for streets one with random weights, since training takes minutes."""
    benchmark = load_benchmark(name)
    return source_model(benchmark) if name == "digits-c" else random_segformer("tiny", benchmark.classes, 0)


class Site:
    """Models, images, a cache of its own, and the process that runs are started from."""

    def __init__(self, place: Path, models: Mapping[str, VisionModel]) -> None:
        os.environ["TESTDG_CACHE"] = str(place / "cache")
        self.place = place
        for name, model in models.items():
            model.save(place / name)
        self.models = {name: load_model(place / name) for name in models}
        self.benchmarks = {name: load_benchmark(name, images=SCENES[name].run["images"]) for name in models}
        self.images = {name: self._images(name) for name in models}
        command = [sys.executable, "-c", NURSERY, *(str(place / name) for name in models)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.nursery = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)  # not for Ctrl-C

    def _images(self, name: str) -> dict[str, Tensor]:
        scene, benchmark = SCENES[name], load_benchmark(name, images=SCENES[name].images)
        return {
            domain: benchmark.domain(domain).read(0, scene.images)[0][..., :64, :96]  # a part of a street is enough
            for domain in scene.domains
        }

    def adapter(self, case: Case, probe: bool) -> Any:
        """A fresh adapter that is ready for its first batch; a guard has a probe of its own or that of the stream."""
        kind, source_images = find_method(case.method), TrainingImages(self.benchmarks[case.benchmark])
        adapter = kind(self.models[case.benchmark], **kind.presets.get(case.benchmark, {}))
        Session(adapter.model, adapter, source_images).warm_up()
        if not case.guarded:
            return adapter
        images = source_images.probe(adapter) if probe else None
        return guard(adapter, None if images is None else images[:PROBE])

    def start(self, options: dict[str, Any], rows: int, freeze: float, after: float) -> int:
        """Start a run; after some rows freeze it for a moment, kill it later, and tell how it ended."""
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        print(json.dumps([options, rows, freeze, after]), file=self.nursery.stdin, flush=True)
        return int(self.nursery.stdout.readline())

    def close(self) -> None:
        """End the other process."""
        self.nursery.communicate()


@contextmanager
def full_disk(draw: random.Random, room: int) -> Iterator[None]:
    """Let no file grow past a drawn size below `room`; or let what was written fail late, when it is forced to disk."""
    before, sync, calls = resource.getrlimit(resource.RLIMIT_FSIZE), os.fsync, count()
    limit, late = draw.randrange(room), draw.randrange(3)

    def fail(number: Any) -> None:
        if next(calls) >= late:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    if draw.random() < 0.3:
        os.fsync = fail  # type: ignore[assignment]
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        os.fsync = sync
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def leftovers(place: Path) -> list[Path]:
    """Temporary files that were never renamed to their place or never deleted."""
    hidden = [path for path in place.rglob(".*") if path.name != ".lock"]
    return [*hidden, *(path for end in ("new", "old", "tmp") for path in place.rglob(f"[!.]*.{end}"))]


def resident() -> float:
    """Megabytes of this process, after everything was given back that can be."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_things() -> tuple[int, int]:
    """Open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
