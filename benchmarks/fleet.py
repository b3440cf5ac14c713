"""The cost of a stream (state on disk, memory, bytes per row, CPU time per image), and what streams share.

    python benchmarks/fleet.py --data DIR --models FOLDER... [--pictures 1024] [--no-guard] [--fleets METHOD...]

The pictures are CIFAR-10 test images in fog (DIR holds cifar-10-batches-py), 64 clean ones are the source. Every method
runs through `adapt_frames`, with a guard and without, in batches of 32 on one thread. The time is the CPU time of the
process, so that other programs matter little: the mean over batches that were learnt from. Memory is the sum of all
live tensors at the last batch, without those of the model that was loaded before. `differs_bytes` counts the tensors of
a state that differ from the source model or do not exist there, without those that all streams learn from the clean
pictures. The memory of the processes of a fleet of three streams is read from /proc/PID/smaps_rollup. Existing rows of
results/fleet.json are replaced, so models can be measured one by one. Use more than a hundred pictures: until then a
guard does not have all its states, nor an optimiser its moments.
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from testdg.core.state import TENSORS
from testdg.core.stateful import WARM
from testdg.data.benchmarks import load_benchmark
from testdg.methods import find_method
from testdg.models import VisionModel, load_model
from testdg.runs.adapt import Request, Watcher, adapt_frames
from testdg.runs.pictures import PredictedBatch
from testdg.runs.session import PictureOptions
from testdg.runs.summary import StreamStatistics
from testdg.studies.fleet import News, StreamProgress, adapt_fleet

BATCH, CLEAN = 32, 64
METHODS = ("source", "align", "tent", "testdg_aligned")
MEASURED = ("Rss", "Pss", "Pss_Shmem", "Private_Clean", "Private_Dirty")


def write_pictures(images: Tensor, folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        levels = (image.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
        Image.fromarray(levels).save(folder / f"{number:04}.png")


def make_pictures(data: Path, count: int, work: Path) -> None:
    benchmark = load_benchmark("cifar10-c", data, images=count + CLEAN, domains=["fog"])
    write_pictures(benchmark.domain("fog").read(0, count)[0], work / "frames")
    for name in "abc":
        (work / "cameras").mkdir(exist_ok=True)
        (work / "cameras" / name).symlink_to(work / "frames")
    write_pictures(benchmark.clean.images[-CLEAN:].float() / 255, work / "clean")


def tensors_alive() -> int:
    """Bytes of all tensors in this process, each memory counted once."""
    gc.collect()
    warnings.filterwarnings("ignore", category=FutureWarning)  # of what else is alive
    found = [one for one in gc.get_objects() if isinstance(one, Tensor) and not one.is_meta]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in found}.values())


def size_of(path: Path) -> int:
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file()) if path.is_dir() else path.stat().st_size


def bytes_that_differ(state: Path, model: VisionModel) -> int:
    """Of the tensors of a saved state: those that are not the source's."""
    if not state.exists():
        return 0
    source = {f"model.{name}": value for name, value in model.state_dict().items()}
    found = {name: value for name, value in load_file(state / TENSORS).items() if not name.startswith(WARM)}
    same = [name for name, value in found.items() if name in source and torch.equal(value, source[name])]
    return sum(value.nbytes for name, value in found.items() if name not in same)


class Meter(Watcher):
    """Notes CPU seconds batch by batch, and the memory at the last one."""

    def __init__(self, pictures: int) -> None:
        self.pictures, self.before = pictures, tensors_alive()
        self.begun = self.last = time.process_time()
        self.batches: list[tuple[bool, float]] = []

    def started(self, total: int | None, done: int) -> None:
        """The model is ready."""
        self.start = time.process_time() - self.begun
        self.last = time.process_time()

    def advanced(self, batch: PredictedBatch, statistics: StreamStatistics) -> None:
        """A batch is done."""
        seconds = time.process_time() - self.last
        learnt = any(one.learnt for one in batch.predictions)
        self.batches.append((learnt, 1000 * seconds / len(batch.predictions)))
        if statistics.all.count == self.pictures:
            self.memory = tensors_alive() - self.before
        self.last = time.process_time()

    def milliseconds(self) -> float:
        """CPU time of an image, of batches that were learnt from where there are such."""
        learnt = [cost for learnt, cost in self.batches if learnt]
        return statistics.fmean(learnt or [cost for _, cost in self.batches])


def request(model: VisionModel, method: str, guard: bool, frames: Path, out: Path) -> Request:
    settings = {"source_images": CLEAN, "sketch": "source"} if "align" in method else {}
    needs_source = method != "source" and (guard or find_method(method)(model, **settings).awaits_source)
    choices = PictureOptions(
        method=method, source=frames.parent / "clean" if needs_source else None, guard=guard, device="cpu"
    )
    return Request(frames=frames, model=model, out=out, choices=choices, settings=settings, batch_size=BATCH)


def measure(model: VisionModel, method: str, guard: bool, pictures: int, work: Path) -> dict[str, Any]:
    out = work / "out" / f"{model.name}-{method}-{guard}"
    meter = Meter(pictures)
    summary = adapt_frames(request(model, method, guard, work / "frames", out), meter)
    state = out / "state"
    return {
        "model": model.name,
        "method": method,
        "guard": guard,
        "pictures": pictures,
        "state_bytes": size_of(state) if state.exists() else 0,
        "differs_bytes": bytes_that_differ(state, model),
        "memory_bytes": meter.memory,
        "row_bytes": round(size_of(out / "predictions.csv") / pictures, 1),
        "journal_bytes": round(size_of(out / ".batches.jsonl") / pictures, 1),
        "start_cpu_seconds": round(meter.start, 2),
        "cpu_ms_an_image": round(meter.milliseconds(), 2),
        "learnt": summary["learnt"],
    }


def process_of(file: Path) -> Iterator[int]:
    """Processes that have a file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == file:
                yield int(link.parts[2])
        except OSError:
            continue


def memory_of(process: int) -> dict[str, int]:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    found = {key: int(value.split()[0]) << 10 for key, value in (line.split(":") for line in lines)}
    return {key: found[key] for key in MEASURED}


def look_at_fleet(model: VisionModel, method: str, work: Path) -> dict[str, Any]:
    """The memory of the processes of three streams, at the last news that all of them run."""
    parent, out = work / "cameras", work / "out" / f"fleet-{model.name}-{method}"
    last: list[dict[str, int]] = []
    running: set[int] = set()

    def look(news: News) -> None:
        if not isinstance(news, StreamProgress):
            return
        running.add(news.number)
        if len(running) == 3 and news.done:
            found = [memory_of(one) for name in "abc" for one in process_of(out / name / ".lock")]
            last[:] = found if len(found) == 3 else last

    adapt_fleet(request(model, method, method != "source", parent, out), cpus=0.3, notify=look)
    mean = {key: round(statistics.fmean(one[key] for one in last)) for key in MEASURED} if last else {}
    return {"model": model.name, "method": method, "streams": 3, "bytes_a_process": mean}


def measure_all(path: str, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything about one model, by the list that it belongs to."""
    model = load_model(path)
    yield "models", {"model": model.name, "bytes": sum(one.nbytes for one in model.parameters())}
    with tempfile.TemporaryDirectory() as place:
        make_pictures(options.data, options.pictures, Path(place))
        for method in METHODS:
            for guard in (False, True) if options.guard and method != "source" else (False,):
                yield "rows", measure(model, method, guard, options.pictures, Path(place))
        for method in options.fleets:
            yield "fleets", look_at_fleet(model, method, Path(place))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--pictures", type=int, default=1024)
    parser.add_argument("--no-guard", dest="guard", action="store_false", help="measure adapters alone")
    parser.add_argument("--fleets", nargs="*", default=["source", "testdg_aligned"], help="methods of the fleets")
    parser.add_argument("--out", type=Path, default=Path("results/fleet.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    found.update(batch=BATCH, threads=1, torch=torch.__version__)
    for path in options.models:
        for key, row in measure_all(path, options):
            print(json.dumps(row), flush=True)
            others = [one for one in found.get(key, []) if name_of(one) != name_of(row)]
            found[key] = [*others, row]
            options.out.write_text(json.dumps(found, indent=1) + "\n")


def name_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row.get("method"), row.get("guard")


if __name__ == "__main__":
    main()
