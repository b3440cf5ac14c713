"""Speed and memory of `testdg adapt`, next to a plain loop of the same model over the same files.

    python benchmarks/adapt_speed.py speed --model FOLDER [--pictures 1000] [--side 200] [--rounds 5]
    python benchmarks/adapt_speed.py memory [--frames 20000]
    python benchmarks/adapt_speed.py broken [--pictures 10000]

`speed` runs `--method source` and the loop in turn, so that both see the same load, and prints the median ratio.
`memory` adapts a tiny model to a list of many frames and prints the resident memory. `broken` makes pictures of many
kinds, one in a hundred of them damaged, and predicts all of them.
"""

import argparse
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does

import numpy as np
import torch
from PIL import Image

from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.runs.adapt import Request, Watcher, adapt_frames
from testdg.runs.pictures import PredictedBatch
from testdg.runs.session import PictureOptions
from testdg.runs.summary import StreamStatistics

BATCH = 32


def scene(generator: np.random.Generator, height: int, width: int) -> Image.Image:
    """A smooth picture with some detail, which compresses as photographs do."""
    coarse = Image.fromarray(generator.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height))
    noise = generator.normal(0, 12, (height, width, 3))
    return Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8))


def make_pictures(folder: Path, count: int, side: int) -> list[Path]:
    generator = np.random.default_rng(0)
    paths = [folder / f"{number:06}.jpg" for number in range(count)]
    for path in paths:
        scene(generator, side, side).save(path, quality=90)
    return paths


@torch.no_grad()
def plain_loop(model: VisionModel, paths: list[Path]) -> float:
    """Images a second of the loop that everybody writes."""
    begun, found = time.perf_counter(), []
    for start in range(0, len(paths), BATCH):
        images = []
        for path in paths[start : start + BATCH]:
            with Image.open(path) as picture:
                levels = torch.from_numpy(np.array(picture.convert("RGB")))
            images.append(levels.permute(2, 0, 1).float() / 255)
        logits = model(model.prepare(torch.stack(images))).logits
        found += list(zip(*(part.tolist() for part in logits.softmax(1).max(1)), strict=True))
    assert len(found) == len(paths)
    return len(paths) / (time.perf_counter() - begun)


def adapt(frames: Path, model: VisionModel, out: Path, method: str, watcher: Watcher | None = None) -> dict[str, Any]:
    choices = PictureOptions(method=method, device="cpu")
    return adapt_frames(Request(frames=frames, model=model, out=out, choices=choices, batch_size=BATCH), watcher)


class Clock(Watcher):
    """Notes the CPU seconds from the first picture to the last."""

    def started(self, total: int | None, done: int) -> None:
        """Begin."""
        self.begun = self.last = time.process_time()

    def advanced(self, batch: PredictedBatch, statistics: StreamStatistics) -> None:
        """Go on."""
        self.last = time.process_time()


def speed(options: argparse.Namespace, work: Path) -> None:
    model = load_model(options.model)
    (work / "frames").mkdir()
    paths = make_pictures(work / "frames", options.pictures, options.side)
    plain_loop(model, paths[: 2 * BATCH])
    walls, cpus = [], []
    for turn in range(options.rounds):
        begun = time.process_time()
        loop = plain_loop(model, paths)
        loop_cpu, clock = time.process_time() - begun, Clock()
        ours = adapt(work / "frames", model, work / f"out{turn}", "source", clock)["images_per_second"]
        walls.append(ours / loop)
        cpus.append((clock.last - clock.begun) / loop_cpu)
        line = f"loop {loop:7.1f} a second, testdg adapt {ours:7.1f}, ratio {walls[-1]:.3f}"
        print(f"{line}; CPU time {cpus[-1]:.3f} of the loop's", flush=True)
    line = f"median ratio {statistics.median(walls):.3f}, CPU time {statistics.median(cpus):.3f}"
    print(f"{line} ({model.name}, {torch.get_num_threads()} threads)")


def resident() -> float:
    """Resident memory, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Memory(Watcher):
    """Prints the resident memory now and then."""

    def __init__(self, every: int) -> None:
        self.every, self.next = every, every

    def advanced(self, batch: PredictedBatch, statistics: StreamStatistics) -> None:
        """Print it once enough frames are through."""
        if statistics.all.count >= self.next:
            print(f"{statistics.all.count:7} frames: {resident():7.1f} MiB", flush=True)
            self.next += self.every


@torch.no_grad()
def tiny() -> VisionModel:
    """A small network whose predictions are of all classes, so that there is something to learn from."""
    torch.manual_seed(0)
    network = TinyViT(patch=8, width=32, depth=2, heads=2)
    model = VisionModel(network, "head", Preprocessing((32, 32)), "tiny").eval()
    generator = np.random.default_rng(1)
    levels = np.stack([np.asarray(scene(generator, 32, 32)) for _ in range(200)])
    images = torch.from_numpy(levels).permute(0, 3, 1, 2) / 255
    network.head.weight.mul_(3 / model(images).logits.std(0).mean())
    network.head.bias.sub_(model(images).logits.mean(0))
    return model


def memory(options: argparse.Namespace, work: Path) -> None:
    (work / "frames").mkdir()
    paths = make_pictures(work / "frames", 500, 64)
    names = [str(paths[number % len(paths)]) for number in range(options.frames)]
    (work / "list.txt").write_text("\n".join(names))
    summary = adapt(work / "list.txt", tiny(), work / "out", "testdg_aligned", Memory(options.frames // 10))
    print({key: summary[key] for key in ("predictions", "skipped", "images_per_second", "guard")})


def broken(options: argparse.Namespace, work: Path) -> None:
    frames = work / "frames"
    frames.mkdir()
    generator = np.random.default_rng(0)
    for number in range(options.pictures):
        make_odd(frames, number, generator)
    begun = time.perf_counter()
    warnings.filterwarnings("ignore", module="PIL")  # as the command does
    summary = adapt(frames, tiny(), work / "out", "testdg_aligned")
    rows = (work / "out" / "predictions.csv").read_text().count("\n") - 1
    print(f"{time.perf_counter() - begun:.0f} s, {rows} rows", summary)
    reasons: dict[str, int] = {}
    for line in (work / "out" / "skipped.csv").read_text().splitlines()[1:]:
        reason = line.split(",", 2)[2][:60]
        reasons[reason] = reasons.get(reason, 0) + 1
    print(reasons)


def make_odd(folder: Path, number: int, generator: np.random.Generator) -> None:
    """A picture of some kind, size and mode; one in a hundred is damaged."""
    height, width = (int(side) for side in generator.integers(16, 160, 2))
    suffix, mode = [("jpg", "RGB"), ("png", "RGBA"), ("webp", "RGB"), ("bmp", "RGB"), ("gif", "P"), ("tif", "RGB"),
                    ("png", "L"), ("png", "P"), ("jpg", "CMYK"), ("png", "LA"), ("png", "1")][number % 11]  # fmt: skip
    path = folder / f"{number % 37}" / f"{number}.{suffix}"
    path.parent.mkdir(exist_ok=True)
    scene(generator, height, width).convert(mode).save(path)
    if number % 100 == 50:
        data = path.read_bytes()
        damages = [b"", data[: len(data) // 2], b"\0" * len(data), data[:20], os.urandom(500)]
        path.write_bytes(damages[number // 100 % len(damages)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "memory", "broken"))
    parser.add_argument("--model", default="")
    parser.add_argument("--pictures", type=int, default=None)
    parser.add_argument("--side", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=20_000)
    options = parser.parse_args()
    options.pictures = options.pictures or {"broken": 10_000}.get(options.what, 1000)
    with tempfile.TemporaryDirectory() as work:
        {"speed": speed, "memory": memory, "broken": broken}[options.what](options, Path(work))


if __name__ == "__main__":
    main()
