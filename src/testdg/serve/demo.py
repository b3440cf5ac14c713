"""The demonstration: clean digits, fog, a black camera, frost and brightness, sent to a server."""

import logging
import time
from collections.abc import Iterator
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.data.pictures import to_pil
from testdg.data.stream import LabelledImages, to_float
from testdg.files import writing
from testdg.methods import find_method
from testdg.runs import source_model
from testdg.runs.session import DEFAULT_METHOD, PictureOptions, Session
from testdg.serve.limits import Refused
from testdg.serve.pictures import DecodedPicture, encoded
from testdg.serve.service import Service
from testdg.serve.session import open_source

NAME = "demo"
BENCHMARK = "digits-c"
SCENES = (("clean", 8), ("fog", 20), ("clean", 8), ("black", 4), ("frost", 16), ("clean", 6), ("brightness", 14))
"""Scenes and their durations in seconds."""
SEVERITY = {"fog": 3}
"""Of corruptions that are too strong for a small model at 5."""
RATE = 40
"""Pictures per second."""
_CLEAN = 256


class DemoPicture(NamedTuple):
    """A picture of the demonstration. Its label is for the curve of correct predictions only."""

    scene: str
    data: bytes
    label: int | None


def open_demo(out: Path, method: str | None, settings: dict[str, Any] | None, device: str) -> Session:
    """The small model of the embedded benchmark, trained once, with a folder of clean digits as its source data."""
    benchmark = load_benchmark(BENCHMARK)
    folder = write_clean(benchmark, out / "demo-clean")
    chosen = find_method(method or DEFAULT_METHOD)
    preset = chosen.presets.get(BENCHMARK, {})
    clean = folder if chosen.name != "source" else None
    options = PictureOptions(method=chosen.name, source=clean, device=device, classes=benchmark.classes)
    return open_source(source_model(benchmark), options, {**preset, **(settings or {})})


def write_clean(benchmark: Benchmark, folder: Path) -> Path:
    samples = benchmark.train()
    with writing(folder):
        for number in range(_CLEAN):
            place = folder / str(int(samples.labels[number])) / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.write_bytes(png(to_float(samples.images[number])))
    return folder


def png(image: Tensor) -> bytes:
    """An image in [0, 1], (3, H, W), as the bytes of a PNG file."""
    return encoded(to_pil(image), "PNG")


def scenes(benchmark: Benchmark) -> Iterator[DemoPicture]:
    """An endless sequence of pictures."""
    test = benchmark.test()
    for number, (scene, seconds) in enumerate(chain.from_iterable(repeat(SCENES))):
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(number)).tolist()
        for place in islice(cycle(order), seconds * RATE):
            label = None if scene == "black" else int(test.labels[place])
            yield DemoPicture(scene, png(_picture(benchmark, test, scene, place)), label)


def _picture(benchmark: Benchmark, test: LabelledImages, scene: str, place: int) -> Tensor:
    if scene == "clean":
        return to_float(test.images[place])
    if scene == "black":
        return torch.zeros(test.images.shape[1:])
    return benchmark.domain(scene, SEVERITY.get(scene)).take([place])[0][0]


def play(service: Service) -> None:
    """Send the scenes to a server at an even pace until it shuts down; refused pictures are left out."""
    scene, due = "", time.monotonic()
    for frame in scenes(load_benchmark(BENCHMARK)):
        due = max(due + 1 / RATE, time.monotonic() - 1)
        if service.closing.wait(max(0.0, due - time.monotonic())):
            return
        try:
            _send(service, frame, starts=frame.scene != scene)
            scene = frame.scene
        except Refused as error:
            logging.getLogger(__name__).warning("the demonstration: %s", error)


def _send(service: Service, frame: DemoPicture, *, starts: bool) -> None:
    with service.admitted(), service.pool.using(NAME, make=True) as session:
        if starts:
            session.timeline.mark("scene", f"the demonstration shows: {frame.scene}")
        picture = service.decode([frame.data], [0])[0].result()
        if isinstance(picture, DecodedPicture):
            answers = service.batcher.predict(session, [picture]).result(service.limits.seconds)
            service.count(session, [picture], answers, frame.label)
            service.learner.offer(session, [picture])
