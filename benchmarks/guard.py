"""What bad streams do to a model with a guard: clean error afterwards, minus the source's, in percent.

    python benchmarks/guard.py --out FILE.jsonl                                     # the embedded digits
    python benchmarks/guard.py --data DIR --model FILE --short --out FILE.jsonl     # CIFAR-10, 14 streams
    python benchmarks/guard.py --honest 0 1 2 --out FILE.jsonl                      # 15 corruptions, with and without
    python benchmarks/guard.py --table FILE.jsonl [BEFORE.jsonl]                    # worst, mean, cells above 3
    python benchmarks/guard.py --cost --data DIR --model DIR --out FILE.jsonl       # milliseconds of a batch; --large

Each cell is a fresh adapter that meets 150 batches of a stream (`STREAMS`), or clean images at a rate that is 10, 100,
10,000 times the method's; then its error on clean test images is measured at once, and after it has met 100 and 500
clean images. Cells that the file has already are not computed again. `--without`: the same without a guard.
The cost is the mean over batches of 40 clean images, with and without a guard in turn; `--large`: a ViT-B/16, 384 px.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

METHODS = ("testdg", "testdg_aligned", "align", "tent", "eata", "sar", "cotta", "roid")
SHORT_METHODS = ("align", "testdg_aligned", "tent", "sar", "roid")
SHORT = (
    "black with read noise",
    "one frame",
    "stuck with sensor noise",
    "one class",
    "heavy noise",
    "one class in fog",
    "sorted at night",
    "smooth noise",
    "crops of four scenes with noise",
    "half smooth noise",
    "crops of four scenes",
    "inverted",
    "day and night in turn",
    "normal mix in fog",
)
RATES = {"clean, 10 times the rate": 10.0, "clean, 100 times": 100.0, "clean, 10,000 times": 10_000.0}
BATCHES = 150
AFTER = (0, 100, 500)
"""Clean images after a stream, after which the error is measured; not where it is harmless at once."""
HARMLESS = 1.0
TESTED = 400
"""Clean test images that the error is measured on."""
COUNTS = {"cuda": (60, 200), "cpu": (12, 48)}
"""Batches before the cost is measured, by when all memory is there, and those that are."""


@dataclass
class Draw:
    """Where one batch of a stream comes from: clean images, chance, and how much of the stream is over."""

    images: Tensor
    labels: Tensor
    size: int
    number: int
    length: int
    generator: torch.Generator
    model: Any

    @property
    def over(self) -> float:
        """Share of the stream that is over."""
        return self.number / self.length

    def pick(self, *classes: int) -> Tensor:
        """Clean images at random, of some classes or of all."""
        pool = torch.arange(len(self.images))
        if classes:
            pool = torch.isin(self.labels, torch.tensor(classes)).nonzero().flatten()
        return self.images[pool[torch.randint(len(pool), (self.size,), generator=self.generator)]]

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator)

    def noise(self, deviation: float = 1.0) -> Tensor:
        """Gaussian noise in the shape of a batch."""
        return deviation * torch.randn((self.size, *self.images.shape[1:]), generator=self.generator)

    def smooth(self, cells: int = 4) -> Tensor:
        """Random colours that change slowly from place to place."""
        coarse = self.uniform(self.size, self.images.shape[1], cells, cells)
        return F.interpolate(coarse, size=self.images.shape[-2:], mode="bilinear")

    def grid(self) -> tuple[Tensor, Tensor]:
        """Row and column of each pixel, from 0 to 1."""
        rows, columns = (torch.linspace(0, 1, side) for side in self.images.shape[-2:])
        return rows[:, None].expand(-1, len(columns)), columns.expand(len(rows), -1)

    def waves(self, sharp: bool) -> Tensor:
        """Stripes of a random direction and width, soft or with sharp edges."""
        rows, columns = self.grid()
        down, along, phase = (20 * self.uniform(3, self.size, 1, 1, 1) - 10).unbind()
        waves = torch.sin(3 * (down * rows + along * columns) + phase)
        waves = waves.sign() if sharp else waves
        return (0.5 + 0.5 * waves).expand(-1, self.images.shape[1], -1, -1)

    def mixed(self, share: float, other: Tensor) -> Tensor:
        """Clean images of which a share is replaced."""
        replaced = self.uniform(self.size, 1, 1, 1) < share
        return torch.where(replaced, other, self.pick())

    def corrupted(self, name: str, images: Tensor) -> Tensor:
        from testdg.data.corruptions import corrupt

        return corrupt(images, name, 5, indices=range(self.size), seed=self.number)

    def scenes(self) -> Tensor:
        """Crops of four pictures that are the same throughout: smooth colours with a few rectangles."""
        generator = torch.Generator().manual_seed(7)
        side = 2 * self.images.shape[-1]
        pictures = F.interpolate(torch.rand(4, self.images.shape[1], 6, 6, generator=generator), size=(side, side))
        places = torch.randint(side // 2, (self.size, 2), generator=self.generator).tolist()
        chosen = torch.randint(4, (self.size,), generator=self.generator).tolist()
        crops = [pictures[k, :, y : y + side // 2, x : x + side // 2] for k, (y, x) in zip(chosen, places, strict=True)]
        return torch.stack(crops)


def shifted(draw: Draw) -> Tensor:
    """One frame, moved by another number of pixels in each image."""
    moves = torch.randint(-8, 9, (draw.size, 2), generator=draw.generator).tolist()
    return torch.stack([draw.images[0].roll(move, (1, 2)) for move in moves])


def checkerboards(draw: Draw) -> Tensor:
    rows, columns = draw.grid()
    cells = torch.randint(2, 9, (draw.size, 1, 1, 1), generator=draw.generator)
    board = ((rows * cells).floor() + (columns * cells).floor()) % 2
    colours = draw.uniform(2, draw.size, draw.images.shape[1], 1, 1)
    return torch.where(board.bool(), colours[0], colours[1])


def gradients(draw: Draw) -> Tensor:
    rows, columns = draw.grid()
    angle = 6.3 * draw.uniform(draw.size, 1, 1, 1)
    ramp = ((rows - 0.5) * angle.sin() + (columns - 0.5) * angle.cos() + 0.7) / 1.4
    one, other = draw.uniform(2, draw.size, draw.images.shape[1], 1, 1)
    return one + (other - one) * ramp


def jigsaw(draw: Draw) -> Tensor:
    """Each image cut into 16 tiles, in another order."""
    tiles = [row.chunk(4, -1) for row in draw.pick().chunk(4, -2)]
    flat = [tile for row in tiles for tile in row]
    order = torch.randperm(16, generator=draw.generator).tolist()
    return torch.cat([torch.cat([flat[k] for k in order[4 * row : 4 * row + 4]], -1) for row in range(4)], -2)


def text(draw: Draw) -> Tensor:
    """Random rows of small bright and dark strokes over pictures."""
    images = draw.pick().clone()
    strokes = draw.uniform(draw.size, 1, images.shape[-2] // 4, images.shape[-1] // 2) < 0.5
    strokes = F.interpolate(strokes.float(), size=images.shape[-2:])
    rows = (torch.arange(images.shape[-2]) % 8 < 4)[:, None]
    return torch.where((strokes > 0) & rows, 1.0, images)


def two_in_turn(draw: Draw, one: Tensor, other: Tensor) -> Tensor:
    return one if draw.number % 2 else other


def adversarial(draw: Draw) -> Tensor:
    """Images that were changed such that the source is wrong, or unsure."""
    images = draw.pick().to(draw.model.device).requires_grad_(True)
    with torch.enable_grad():
        logits = draw.model(draw.model.prepare(images)).logits
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1)), images)
    return (images.detach() + 0.1 * gradient.sign()).cpu()


def rolling_shutter(draw: Draw) -> Tensor:
    """Each row is moved a little further than the one above."""
    rows = [row.roll(number // 2, -1) for number, row in enumerate(draw.pick().unbind(-2))]
    return torch.stack(rows, -2)


def zoomed(draw: Draw) -> Tensor:
    """The middle of each image, three times as large."""
    height, width = (side // 3 for side in draw.images.shape[-2:])
    middle = draw.pick()[..., height : 2 * height, width : 2 * width]
    return F.interpolate(middle, size=draw.images.shape[-2:], mode="bilinear")


def sorted_classes(draw: Draw) -> Tensor:
    order = draw.labels.sort(stable=True).indices
    return draw.images[order[(draw.number * draw.size + torch.arange(draw.size)) % len(order)]]


def first_class(draw: Draw) -> int:
    return int(draw.labels[0])


def largely(draw: Draw, share: float) -> Tensor:
    """A share of the images is of one class."""
    one = draw.uniform(draw.size, 1, 1, 1) < share
    return torch.where(one, draw.pick(first_class(draw)), draw.pick())


STREAMS: dict[str, Callable[[Draw], Tensor]] = {
    # Cameras and files that are broken
    "black": lambda draw: torch.zeros_like(draw.noise()),
    "white": lambda draw: torch.ones_like(draw.noise()),
    "noise": lambda draw: draw.noise().add(0.5),
    "one frame": lambda draw: draw.images[:1].expand(draw.size, -1, -1, -1),
    "one frame, shifted": shifted,
    "stuck with sensor noise": lambda draw: draw.images[:1] + draw.noise(0.05),
    "black with read noise": lambda draw: draw.noise(0.01).abs(),
    "drift to black": lambda draw: draw.pick() * (1 - draw.over),
    "drift to white": lambda draw: draw.pick().lerp(torch.ones(()), draw.over),
    "drift to smooth noise": lambda draw: draw.pick().lerp(draw.smooth(), draw.over),
    "hardly any contrast": lambda draw: 0.5 + 0.05 * (draw.pick() - 0.5),
    "noise 0.1": lambda draw: draw.pick() + draw.noise(0.1),
    "heavy noise": lambda draw: draw.pick() + draw.noise(0.5),
    "rolling shutter": rolling_shutter,
    # Geometry and colours
    "mirrored": lambda draw: draw.pick().flip(-1),
    "upside down": lambda draw: draw.pick().flip(-2),
    "inverted": lambda draw: 1 - draw.pick(),
    "half inverted": lambda draw: draw.mixed(0.5, 1 - draw.pick()),
    "jigsaw": jigsaw,
    "zoomed in": zoomed,
    "colours exchanged": lambda draw: draw.pick().roll(1, 1).pow(0.3),
    # What is not a picture of anything
    "smooth noise": lambda draw: draw.smooth(),
    "half smooth noise": lambda draw: draw.mixed(0.5, draw.smooth()),
    "clean and smooth noise in turn": lambda draw: two_in_turn(draw, draw.pick(), draw.smooth()),
    "large pictures of noise": lambda draw: F.interpolate(draw.noise().mul(0.3).add(0.5), scale_factor=4),
    "checkerboards": checkerboards,
    "gradients": gradients,
    "textures": lambda draw: draw.smooth(12),
    "soft waves": lambda draw: draw.waves(sharp=False),
    "stripes": lambda draw: draw.waves(sharp=True),
    "text over pictures": text,
    "two pictures in one": lambda draw: (draw.pick() + draw.pick()) / 2,
    "adversarial": adversarial,
    "crops of four scenes": lambda draw: draw.scenes(),
    "crops of four scenes with noise": lambda draw: draw.scenes() + draw.noise(0.1),
    # The mix of classes
    "one class": lambda draw: draw.pick(first_class(draw)),
    "sorted": sorted_classes,
    "two classes mixed": lambda draw: draw.pick(0, 1),
    "three classes": lambda draw: draw.pick(0, 1, 2),
    "70 % one class": lambda draw: largely(draw, 0.7),
    "90 % one class, then clean": lambda draw: largely(draw, 0.9) if draw.over < 0.7 else draw.pick(),
    "one class in fog": lambda draw: draw.corrupted("fog", draw.pick(first_class(draw))),
    "sorted at night": lambda draw: 0.25 * sorted_classes(draw) + draw.noise(0.01),
    # Nothing bad
    "normal mix in fog": lambda draw: draw.corrupted("fog", draw.pick()),
    "day and night in turn": lambda draw: two_in_turn(draw, draw.pick(), 0.2 * draw.pick()),
    "clean": lambda draw: draw.pick(),
}
HELD_OUT = ("jigsaw", "gradients", "drift to black", "rolling shutter", "one class in fog")
"""Streams that took part in no choice about the guard."""


class Case:
    """A model with clean test and training images; `tested` are those that its error is measured on."""

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
        self.source_error = self.clean_error(self.adapter("source", 1.0))

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
        length = BATCHES if size > 2 else 400
        make = STREAMS["clean" if kind in RATES else kind]
        for number in range(length):
            yield make(Draw(self.images, self.labels, size, number, length, generator, self.model)).clamp(0, 1)

    def clean_error(self, adapter: Any) -> float:
        """Error on the clean test images, without learning."""
        found = torch.cat([adapter.predict(part).argmax(1).cpu() for part in self.images[:TESTED].split(100)])
        return 100 * float((found != self.labels[:TESTED]).float().mean())

    def cell(self, method: str, kind: str, size: int, guarded: bool = True) -> dict[str, Any] | None:
        """One row of the result."""
        from testdg import guard

        if (adapter := self.adapter(method, RATES.get(kind, 1.0))) is None:
            return None
        if guarded:
            adapter = guard(adapter, self.train[-100:])
        for images in self.stream(kind, size):
            adapter(images)
        about = {"method": method, "stream": kind, "batch": size, "guarded": guarded}
        if guarded:
            reasons = [(d.batch, d.action, d.reason) for d in adapter.decisions if d.action != "skip"]
            about |= {"guard": dict(adapter.counts), "undone": reasons[-6:]}
        clean = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(1))
        errors, met = [], 0
        for after in AFTER:
            for part in self.images[clean[met:after]].split(size) if after else ():
                adapter(part)
            met = after
            errors.append(round(self.clean_error(adapter) - self.source_error, 2))
            if errors[0] <= HARMLESS:
                break
        return about | {"more": errors}

    def honest(self, method: str, seed: int, guarded: bool, in_order: bool = False) -> dict[str, Any]:
        """Mean error on 15 corruptions at severity 5, one after the other, 300 images each, in batches of 20."""
        from testdg import guard
        from testdg.data.corruptions import STANDARD_ORDER, corrupt

        adapter = self.adapter(method, 1.0)
        online = guard(adapter, self.train[-100:]) if guarded else adapter
        generator, errors = torch.Generator().manual_seed(seed), []
        for number, name in enumerate(STANDARD_ORDER):
            chosen = torch.randperm(len(self.images), generator=generator)[:300]
            chosen = chosen[self.labels[chosen].sort(stable=True).indices] if in_order else chosen
            images = corrupt(self.images[chosen], name, 5, indices=chosen.tolist(), seed=number)
            found = torch.cat([online(part).argmax(1).cpu() for part in images.split(20)])
            errors.append(100 * float((found != self.labels[chosen]).float().mean()))
        stream = "sorted" if in_order else "continual"
        row = {"method": method, "stream": stream, "seed": seed, "guard": guarded}
        return {**row, "error": round(statistics.mean(errors), 2), **({"counts": online.counts} if guarded else {})}

    def enlarge(self) -> None:
        """Put a ViT-B/16 at 384 px, of random weights, whose predictions are of all classes, in place of the model."""
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


def measure_honest(arguments: argparse.Namespace) -> None:
    """Append what honest streams lose."""
    case = Case(arguments.data, arguments.model)
    with arguments.out.open("a") as file:
        for method in arguments.methods:
            for seed in arguments.honest:
                for guarded in (False, True):
                    row = case.honest(method, seed, guarded, arguments.in_order)
                    print(json.dumps(row), file=file, flush=True)
                    print(*row.values(), flush=True)


def write_table(path: Path, before: Path | None) -> None:
    """Print, for each method, the worst and the mean cell and how many are above 3, right after and 500 images on."""
    print("| method | cells | worst | mean | above 3 | worst after 500 | above 2 |", "| --- |" + 6 * " --- |", sep="\n")
    for file in filter(None, (before, path)):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for method in dict.fromkeys(row["method"] for row in rows):
            found = [row["more"] for row in rows if row["method"] == method]
            at_once, later = [each[0] for each in found], [each[-1] for each in found]
            above, still = sum(value > 3 for value in at_once), sum(value > 2 for value in later)
            mean = statistics.mean(at_once)
            cells = f"{len(at_once)} | {max(at_once):.1f} | {mean:.2f} | {above} | {max(later):.1f} | {still}"
            print(f"| {method} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--streams", nargs="+")
    parser.add_argument("--batches", type=int, nargs="+", default=[20], help="images of a batch")
    parser.add_argument("--short", action="store_true", help="14 streams, five methods")
    parser.add_argument("--without", action="store_true", help="without a guard")
    parser.add_argument("--honest", type=int, nargs="+", metavar="SEED")
    parser.add_argument("--in-order", action="store_true", help="honest streams whose images are sorted by class")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        return write_table(arguments.table[0], arguments.table[1] if len(arguments.table) > 1 else None)
    arguments.methods = arguments.methods or (SHORT_METHODS if arguments.short else METHODS)
    if arguments.cost:
        return measure_cost(arguments)
    if arguments.honest:
        return measure_honest(arguments)
    kinds = arguments.streams or (SHORT if arguments.short else [*STREAMS, *RATES])
    known = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {(row["method"], row["stream"], row["batch"], row["guarded"]) for row in map(json.loads, known)}
    case = Case(arguments.data, arguments.model)
    with arguments.out.open("a") as file:
        for kind in kinds:
            for method in arguments.methods:
                for size in arguments.batches:
                    if (method, kind, size, not arguments.without) in done or (
                        row := case.cell(method, kind, size, not arguments.without)
                    ) is None:
                        continue
                    print(json.dumps(row), file=file, flush=True)
                    print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
