"""Helpers of the tests of the server."""

import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support import errors
from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import to_float
from testdg.serve.api import Action, ActionRequest, Done
from testdg.serve.demo import BENCHMARK, png
from testdg.serve.limits import Refused
from testdg.serve.pictures import DecodedPicture
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
def refused(status: int, code: str, *values: object) -> Iterator[None]:
    """Expect a refusal with this status and code, whose message has the values."""
    with errors.refused(code, *values) as caught:
        yield
    assert isinstance(caught.value, Refused)
    assert caught.value.status == status


def read(service: Service, files: list[bytes]) -> list[DecodedPicture]:
    """Decoded pictures."""
    found = [future.result(30) for future in service.decode(files, service.check(files))]
    return [one for one in found if isinstance(one, DecodedPicture)]


def act(service: Service, name: str, action: Action, reason: str = "", **values: object) -> Done:
    return service.act(name, action, ActionRequest.model_validate({"reason": reason, **values}))


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "timeout"
        time.sleep(0.02)


def send(service: Service, name: str, files: list[bytes], *, learn: bool = True) -> list[int]:
    """Predict pictures as a request does, and wait until they were learnt from."""
    with service.admitted(), service.pool.using(name, make=True) as stream:
        pictures = read(service, files)
        answers = service.batcher.predict(stream, pictures).result(30)
        service.count(stream, pictures, answers)
        if learn:
            for fate in service.learner.offer(stream, pictures, wait=True)[1]:
                fate.result(30)
        return [one.class_index for one in answers]


def empty_png(side: int) -> bytes:
    """A few bytes that announce a huge picture."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
