"""What bad streams do to a model, with and without a guard: clean error afterwards, in percent.

    python benchmarks/guard.py --out FILE.jsonl                                 # the embedded digits
    python benchmarks/guard.py --data DIR --model DIR --jobs 12 --out FILE.jsonl  # CIFAR-10
    python benchmarks/guard.py --cost --data DIR --model DIR --out FILE.jsonl   # milliseconds of a batch; --large

Each cell is a fresh adapter that meets 150 batches: black, white, noise, one frame, one class, sorted by class, or
honest clean images at a rate that is 10, 100, 10,000 times the method's. Batches of 20; of 1 and 2 with `--batches`.
The cost is the mean over batches of 40 clean images, with and without a guard in turn; `--large`: a ViT-B/16, 384 px.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

METHODS = ("testdg", "testdg_aligned", "align", "tent", "eata", "sar", "cotta", "roid")
STREAMS = ("black", "white", "noise", "one frame", "one class", "sorted")
RATES = (10.0, 100.0, 10_000.0)
BATCHES = 150
COUNTS = {"cuda": (60, 200), "cpu": (12, 48)}
"""Batches before the cost is measured, by when all memory is there, and those that are."""


class Case:
    """A model with clean test and training images."""

    def __init__(self, data: Path | None, model: str | None) -> None:
        from testdg import load_benchmark, load_model
        from testdg.data.cifar import read_test, read_train
        from testdg.data.stream import to_float
        from testdg.runs import source_model

        torch.set_num_threads(1)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if data is None:
            benchmark = load_benchmark("digits-c")
            test, train = benchmark.test(), benchmark.train()
            self.preset = "digits-c"
            self.images, self.labels = to_float(test.images), test.labels
            self.train, self.train_labels = to_float(train.images), train.labels
            self.model = source_model(benchmark)
        else:
            self.preset, self.model = "none", load_model(str(model)).to(device)
            test, train = read_test(data).first(2000), read_train(data).first(2000)
            self.images, self.labels = to_float(test.images), test.labels
            self.train, self.train_labels = to_float(train.images), train.labels

    def adapter(self, method: str, scale: float, precision: str = "fp32") -> Any:
        """An adapter that has seen what it wants to of the source; None where there is no rate to scale."""
        from testdg import adapt
        from testdg.methods import find_method

        kind = find_method(method)
        settings = dict(kind.presets.get(self.preset, {}))
        if scale != 1:
            rate = settings.get("learning_rate", getattr(kind.Settings(), "learning_rate", None))
            if rate is None:
                return None
            settings["learning_rate"] = rate * scale
        adapter = adapt(self.model, method, precision=precision, **settings)
        if adapter.awaits_source:
            order = torch.arange(adapter.source_images()) % len(self.train)
            adapter.warm_up((self.train[part], self.train_labels[part]) for part in order.split(64))
        return adapter

    def stream(self, kind: str, size: int) -> Iterator[Tensor]:
        """The batches of a cell."""
        generator = torch.Generator().manual_seed(0)
        shape, order = (size, *self.images.shape[1:]), self.labels.sort(stable=True).indices
        one_class = (self.labels == self.labels[0]).nonzero().flatten()
        for number in range(BATCHES if size > 2 else 400):
            if kind in ("black", "white"):
                yield torch.full(shape, float(kind == "white"))
            elif kind == "noise":
                yield torch.rand(shape, generator=generator)
            elif kind == "one frame":
                yield self.images[:1].expand(shape)
            elif kind == "sorted":
                yield self.images[order[(number * size + torch.arange(size)) % len(order)]]
            else:
                pool = one_class if kind == "one class" else torch.arange(len(self.images))
                yield self.images[pool[torch.randint(len(pool), (size,), generator=generator)]]

    def clean_error(self, adapter: Any) -> float:
        """Error on the clean test images, without learning."""
        found = torch.cat([adapter.predict(part).argmax(1).cpu() for part in self.images.split(100)])
        return 100 * float((found != self.labels).float().mean())

    def cell(self, method: str, kind: str, scale: float, size: int, guarded: bool) -> dict[str, Any] | None:
        """One row of the result."""
        from testdg import guard

        if (adapter := self.adapter(method, scale)) is None:
            return None
        if guarded:
            adapter = guard(adapter, self.train[-100:])
        for images in self.stream(kind, size):
            adapter(images)
        counts = {"guard": dict(adapter.counts)} if guarded else {}
        about = {"method": method, "stream": kind, "rate": scale, "batch": size, "guarded": guarded}
        return {**about, "clean_error": round(self.clean_error(adapter), 2), **counts}

    def enlarge(self) -> None:
        """Put a ViT-B/16 at 384 px, of random weights, whose predictions are of all classes, in place of the model."""
        import torch.nn.functional as F
        from step_cost import vit_base

        self.images, self.train = (
            F.interpolate(images[:count], size=384, mode="bilinear").clamp(0, 1)
            for images, count in ((self.images, 2000), (self.train, 256))
        )
        self.model = vit_base(384).to(self.model.device)
        head = self.model.network.classifier
        with torch.no_grad():
            shown = self.model(self.train[:40].to(self.model.device)).logits
            head.weight.mul_(100)  # the rows differ from image to image by little
            head.bias.copy_(-100 * (shown - head.bias).mean(0))

    def cost(self, method: str) -> dict[str, Any]:
        """Mean milliseconds of a batch without and with a guard, in turn, with nothing for it to object to."""
        from testdg import guard
        from testdg.core.guard import health

        device = self.model.device.type
        (first, measured), precision = COUNTS[device], "bf16" if device == "cuda" else "fp32"
        plain, guarded = (self.adapter(method, 1e-6, precision) or self.adapter(method, 1, precision) for _ in range(2))
        health.LENIENT = health.STRICT["classification"] = 1.0  # weights at random flip at a touch
        guarded = guard(guarded, self.train[-100:])
        parts = self.images.to(self.model.device).split(40)[:50]
        times: dict[str, list[float]] = {"without": [], "with": []}
        for number in range(first + measured):
            for name, adapter in (("without", plain), ("with", guarded)):
                times[name].append(milliseconds(adapter, parts[number % len(parts)]))
        means = {name: sum(found[first:]) / measured for name, found in times.items()}
        gap = statistics.median(b - a for a, b in zip(times["without"][first:], times["with"][first:], strict=True))
        row = {name: round(mean, 2) for name, mean in means.items()}
        about = {"method": method, "model": self.model.name, **row, "ratio": round(means["with"] / means["without"], 3)}
        clock = {} if device == "cuda" else {"clock": "CPU time, one thread"}
        return about | {"median gap": round(gap, 3), "guard": dict(guarded.counts), **clock}


def milliseconds(call: Any, images: Tensor) -> float:
    """How long a call takes, until its prediction is known; on a CPU, whose cores others use as well, its CPU time."""
    clock = time.perf_counter if images.is_cuda else time.process_time
    began = clock()
    call(images).argmax(1).cpu()
    return 1000 * (clock() - began)


def measure_cost(arguments: argparse.Namespace) -> None:
    """Write what a guard costs each method."""
    case = Case(arguments.data, arguments.model)
    if arguments.large:
        case.enlarge()
    with arguments.out.open("w") as file:
        for method in arguments.methods:
            print(json.dumps(row := case.cost(method)), file=file, flush=True)
            print(*row.values(), flush=True)


def serve(arguments: argparse.Namespace, todo: Any, done: Any) -> None:
    case = Case(arguments.data, arguments.model)
    while (cell := todo.get()) is not None:
        try:
            done.put(case.cell(*cell))
        except Exception as error:
            done.put({"cell": cell, "error": f"{type(error).__name__}: {error}"[:300]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--batches", type=int, nargs="+", default=[20], help="images of a batch")
    parser.add_argument("--without", action="store_true", help="without a guard, too")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.cost:
        return measure_cost(arguments)
    kinds = [(kind, 1.0) for kind in STREAMS] + [("honest", rate) for rate in RATES]
    cells = [
        (method, kind, scale, size, guarded)
        for method in arguments.methods
        for size in arguments.batches
        for kind, scale in kinds
        for guarded in ((True, False) if arguments.without else (True,))
    ]
    context = mp.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for cell in [*[("source", "honest", 1.0, 20, False)], *cells, *[None] * arguments.jobs]:
        todo.put(cell)
    workers = [context.Process(target=serve, args=(arguments, todo, done)) for _ in range(arguments.jobs)]
    for worker in workers:
        worker.start()
    with arguments.out.open("w") as file:
        for _ in range(len(cells) + 1):
            if (row := done.get()) is not None:
                print(json.dumps(row), file=file, flush=True)
                print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
