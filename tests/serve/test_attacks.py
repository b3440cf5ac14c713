"""Malicious requests: they cost little, and other requests do not wait for them."""

import io
import resource
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from PIL import Image

from support.serving import chunk, digits, empty_png, read, refused, send, wait_for
from testdg.data.pictures import Unreadable
from testdg.models import Preprocessing, load_model
from testdg.models.tiny import TinyCNN
from testdg.runs.session import PictureOptions
from testdg.serve.limits import Limits
from testdg.serve.pictures import check_header
from testdg.serve.security import Token
from testdg.serve.service import Service
from testdg.serve.session import open_source

Listen = Callable[..., httpx.Client]
Start = Callable[..., Service]
JSON = {"content-type": "application/json"}


def flat(side: int, kind: str = "PNG", **options: object) -> bytes:
    """A picture of one colour, which is small as a file."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (90, 90, 90)).save(file, kind, **options)
    return file.getvalue()


def test_odd_headers_and_texts_are_refused_in_one_sentence(listen: Listen) -> None:
    client, picture = listen(Token("a-long-secret-of-our-own")), digits(1)[0]
    assert client.post("/login", content=b'{"token": "\\ud800"}', headers=JSON).status_code == 401
    client.headers["authorization"] = "Bearer a-long-secret-of-our-own"
    assert client.get("/state", headers={"origin": "http://[x"}).status_code == 403
    assert client.post("/predict?wait=perhaps", content=picture).json()["error"].startswith("wait: ")
    with client.stream("GET", "/events") as reply:
        boot = next(reply.iter_lines()).removeprefix("id: ").partition("-")[0]
    with client.stream("GET", "/events", headers={"last-event-id": f"{boot}-{'9' * 5000}"}) as reply:
        assert reply.status_code == 200


def test_json_is_counted_before_it_is_parsed(listen: Listen) -> None:
    client = listen()
    for text in ("[]," * 1000 + "[]", '"a",' * 700 + "1", "1," * 2000 + "1"):
        reply = client.post("/predict", content=f'{{"pictures": [{text}]}}', headers=JSON)
        assert (reply.status_code, reply.json()["code"]) == (400, "too-many-parts")


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    data = flat(64, "JPEG", progressive=True)
    scan = data[data.rfind(b"\xff\xda") : -2]
    assert refusal(data) == ""
    assert refusal(data[:-2] + scan * 64 + data[-2:]) == "picture-scans"
    assert refusal(data[:-2] + scan * 9 + data[-2:], scanned=64 * 64 * 10) == "picture-scans"


def test_pictures_that_are_not_resized_have_a_lower_limit(start: Start, tmp_path: Path) -> None:
    limits = {"pixels": 10_000, "pass_pixels": 1000}
    for size, cost in (((32, 32), 40 * 40), (None, None)):
        model = load_model(TinyCNN(4), preprocessing=Preprocessing(size))
        source = open_source(model, PictureOptions(method="source", device="cpu"))
        (found,) = start(tmp_path / str(size), source, **limits).check([flat(40)])
        if cost is None:
            assert isinstance(found, Unreadable)
            assert found.code == "picture-pixels"
        else:
            assert found == cost


def refusal(data: bytes, **limits: int) -> str:
    """Code of the reason why a header is refused, or nothing."""
    found = check_header(data, Limits(**limits), Limits().pixels)
    return found.code if isinstance(found, Unreadable) else ""


def test_passes_and_steps_are_bounded_and_answers_the_same(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = 32 * 32
    service, files = start(pass_pixels=7 * pixels), digits(30, "frost")
    assert service.source.canvas.size == (32, 32)
    passed, stepped = [], []
    with service.pool.using("a", make=True) as stream:
        predict, learn = stream.predict, stream._learn
        monkeypatch.setattr(stream, "predict", lambda batch: passed.append(len(batch)) or predict(batch))
        monkeypatch.setattr(stream, "_learn", lambda batch: stepped.append(len(batch)) or learn(batch))
        assert len(send(service, "a", files)) == 30
        pictures = read(service, files)
        answers = service.batcher.predict(stream, pictures).result(30)
        images = torch.stack([one.image for one in pictures]) / 255
        expected = stream.session.predict_by(service.source.model, images).argmax(1).tolist()
    assert [one.source_class_index for one in answers] == expected
    assert passed == [7, 7, 7, 7, 2] * 2
    assert (max(stepped), sum(stepped)) == (7, 30)


def test_memory_of_decoded_pictures_is_bounded_and_released(listen: Listen) -> None:
    client = listen(decoded=100_000)
    service = client.service  # type: ignore[attr-defined]
    assert client.post("/predict", content=digits(1)[0]).status_code == 200
    reply = client.post("/predict", files=[("p", flat(100))] * 9)
    assert (reply.status_code, reply.json()["code"], service.refused) == (503, "overloaded", 1)
    assert service.decoded == 0
    with service.admitted() as reserve:
        reserve(60_000)
        with refused(503, "overloaded"):
            reserve(60_000)
        assert service.decoded == 60_000
    assert service.decoded == 0


def test_a_form_needs_no_disk_space(listen: Listen) -> None:
    client, limits = listen(), resource.getrlimit(resource.RLIMIT_FSIZE)
    padded = digits(1)[0] + b"\0" * (2 << 20)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        assert client.post("/predict", files=[("p", padded)]).status_code == 200
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_silent_connections_are_closed_and_busy_ones_are_not(listen: Listen) -> None:
    client = listen(head_seconds=0.4)
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address) as silent, socket.create_connection(address) as halfway:
        halfway.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        for _ in range(12):  # one connection, for longer than that
            assert client.get("/healthz").status_code == 200
            time.sleep(0.1)
        for one in (silent, halfway):
            one.settimeout(20)
            assert one.recv(100) == b""


def watch(client: httpx.Client) -> socket.socket:
    """A connection that asks for events."""
    one = socket.create_connection((client.base_url.host, client.base_url.port or 80))
    one.settimeout(60)
    one.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return one


def test_pages_are_counted_at_admission(listen: Listen) -> None:
    client = listen(watchers=3)
    pages = [watch(client) for _ in range(12)]
    assert Counter(one.recv(12) for one in pages) == {b"HTTP/1.1 200": 3, b"HTTP/1.1 503": 9}
    for one in pages:
        one.close()

    def there_is_room() -> bool:
        with watch(client) as again:
            return again.recv(12) == b"HTTP/1.1 200"

    wait_for(there_is_room)


def test_loading_a_stream_does_not_delay_others(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    client, picture = listen(seconds=5.0), digits(1)[0]
    service = client.service  # type: ignore[attr-defined]
    assert client.post("/predict?stream=ready", content=picture).status_code == 200
    load, loaded = service.storage.load, threading.Event()

    def slowly(name: str) -> object:
        loaded.wait(30)
        return load(name)

    monkeypatch.setattr(service.storage, "load", slowly)
    with ThreadPoolExecutor(6) as pool:
        slow = [pool.submit(client.post, "/predict?stream=slow", content=picture) for _ in range(6)]
        wait_for(lambda: service.batcher.in_flight == 6)
        assert client.post("/predict?stream=ready", content=picture).status_code == 200
        assert {one.result().status_code for one in slow} == {503}
    loaded.set()
    wait_for(lambda: "slow" in [stream.name for stream in service.pool.resident()])
    wait_for(lambda: all(stream.users == 0 for stream in service.pool.resident()))
    assert service.decoded == 0
    assert client.post("/predict?stream=slow", content=picture).status_code == 200


def test_a_text_chunk_that_unfolds_is_refused(listen: Listen) -> None:
    client, picture = listen(), digits(1)[0]
    text = b"note\0\0" + zlib.compress(b"a" * (80 << 20))
    reply = client.post("/predict", content=picture[:33] + chunk(b"zTXt", text) + picture[33:])
    assert reply.status_code == 422


def jpeg_of(side: int) -> bytes:
    """A small JPEG whose header announces another size."""
    data = bytearray(flat(64, "JPEG"))
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", side, side)
    return bytes(data)


def test_files_of_very_many_parts_are_refused_by_their_header() -> None:
    png, jpeg = flat(32), flat(32, "JPEG")
    assert (refusal(png), refusal(jpeg)) == ("", "")
    assert refusal(png[:33] + chunk(b"tEXt", b"") * 10_000 + png[33:]) == "damaged-picture"
    for part in (b"\xff", b"\0", b"\xff\xd0", b"\xff\xfe\0\2"):
        assert refusal(jpeg[:20] + part * 10 + jpeg[20:]) == ""  # after the first segment
        assert refusal(jpeg[:20] + part * 10_000 + jpeg[20:]) == "damaged-picture"


def test_bombs_are_refused_while_honest_requests_are_answered(listen: Listen) -> None:
    """Pictures that announce too many pixels, and pictures that are small as files and expensive to decode."""
    client, honest = listen(large=90_000, large_requests=2), digits(8)
    service = client.service  # type: ignore[attr-defined]
    bombs = {empty_png(60_000): 422, jpeg_of(60_000): 422, flat(1500): 200}
    until, statuses = time.monotonic() + 3, Counter()

    def attack(seed: int) -> None:
        with httpx.Client(base_url=client.base_url, timeout=30) as bomber:
            for turn in range(60):
                if time.monotonic() > until:
                    return
                bomb, expected = list(bombs.items())[(seed + turn) % len(bombs)]
                statuses[(expected, bomber.post("/predict", content=bomb).status_code)] += 1

    with ThreadPoolExecutor(8) as pool:
        attackers = [pool.submit(attack, seed) for seed in range(8)]
        answers = [client.post("/predict", content=honest[number % 8]).status_code for number in range(40)]
        for attacker in attackers:
            attacker.result()
    assert set(answers) == {200}
    assert statuses.keys() <= {(422, 422), (200, 200), (200, 503)}
    assert statuses.keys() >= {(422, 422), (200, 200), (200, 503)}
    wait_for(lambda: (service.large_in_flight, service.batcher.in_flight, service.decoded) == (0, 0, 0))


def test_large_pictures_that_wait_at_shutdown_are_refused(listen: Listen) -> None:
    client = listen(large=1000)
    service = client.service  # type: ignore[attr-defined]
    assert client.post("/predict", content=flat(64)).status_code == 200
    service.closing.set()
    reply = client.post("/predict", content=flat(64))
    assert (reply.status_code, reply.json()["code"]) == (503, "closing")
    assert client.post("/predict", content=flat(30)).status_code == 200
