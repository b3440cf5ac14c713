"""What tests of the server share."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import to_float
from testdg.serve.demo import BENCHMARK, png
from testdg.serve.limits import Refused
from testdg.serve.pictures import Picture
from testdg.serve.service import Service


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def digits(count: int, scene: str = "clean", start: int = 0) -> list[bytes]:
    """PNG files of test digits."""
    benchmark = load_benchmark(BENCHMARK)
    if scene == "clean":
        images = to_float(benchmark.test().images[start : start + count])
    else:
        images = benchmark.domain(scene).read(start, start + count)[0]
    return [png(image) for image in images]


@contextmanager
def refused(status: int, match: str) -> Iterator[None]:
    """Something that is refused with this status and in these words."""
    with pytest.raises(Refused, match=match) as caught:
        yield
    assert caught.value.status == status


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def send(service: Service, name: str, files: list[bytes], *, learn: bool = True) -> list[int]:
    """Predict pictures as a request does, and wait until they were learnt from."""
    with service.admitted(), service.streams.using(name, make=True) as stream:
        read = service.read(files)
        pictures = [one for one in read if isinstance(one, Picture)]
        answers = service.batcher.ask(stream, pictures).result(30)
        service.let_go(read)
        service.note(stream, pictures, answers)
        if learn:
            for fate in service.learn(stream, pictures, wait=True)[1]:
                fate.result(30)
        return [one.own.class_index for one in answers]
