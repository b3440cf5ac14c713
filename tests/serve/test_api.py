"""HTTP requests, answers and refusals."""

import asyncio
import base64
import io
import json
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from support.errors import refused
from support.serving import digits, empty_png, wait_for
from testdg.models import Preprocessing, load_model
from testdg.models.segformer import tiny_segformer
from testdg.runs.session import PictureOptions
from testdg.serve.app import make_app
from testdg.serve.security import Token, find_token, is_loopback
from testdg.serve.service import Service
from testdg.serve.session import FROZEN, open_source

Listen = Callable[..., httpx.Client]
JSON = {"content-type": "application/json"}
SECRET = "a-long-secret-of-our-own"


def jpeg(data: bytes) -> bytes:
    file = io.BytesIO()
    Image.open(io.BytesIO(data)).save(file, "JPEG")
    return file.getvalue()


def test_pictures_as_body_form_and_json(listen: Listen) -> None:
    client, files = listen(), digits(3)
    (plain,) = client.post("/predict", content=files[0], headers={"content-type": "image/png"}).json()["predictions"]
    assert plain.keys() >= {"class", "confidence", "source_class", "source_confidence", "differs", "learnt", "reason"}
    form = client.post("/predict", files=[("pictures", (f"{n}.png", data)) for n, data in enumerate(files)]).json()
    texts = [base64.b64encode(data).decode() for data in files]
    encoded = client.post("/predict", json={"pictures": texts}).json()
    assert [one["class"] for one in form["predictions"]] == [one["class"] for one in encoded["predictions"]]
    assert form["predictions"][0]["class"] == plain["class"]
    assert encoded["learning"] == "queued"
    assert client.post("/predict", content=jpeg(files[0])).json()["predictions"][0]["class"] == plain["class"]
    assert client.get("/state", params={"stream": "main"}).json()["pictures"] == 8


def test_wait_returns_the_outcome_of_learning(listen: Listen) -> None:
    client = listen()
    for number in range(3):
        pictures = [("p", data) for data in digits(32, "clean", 32 * number)]
        answer = client.post("/predict", params={"stream": "cam", "wait": True}, files=pictures).json()
    assert answer["learning"] == "done"
    assert all(one["learnt"] for one in answer["predictions"])
    again = client.post("/predict", params={"stream": "cam", "wait": True}, files=pictures).json()
    assert {(one["learnt"], one["reason"]) for one in again["predictions"]} == {(False, "the same frame again")}
    assert again["last_learning"] == {"learnt": False, "reason": "the same frame again"}
    changed = client.post(
        "/predict", params={"stream": "cam", "wait": True}, files=[("p", d) for d in digits(32, "fog")]
    )
    assert changed.json()["change"] is True


def test_bad_pictures_are_reported_and_affect_no_others(listen: Listen) -> None:
    client, good = listen(), digits(1)[0]
    bomb, large = empty_png(60000), empty_png(5000)
    cases = {b"": 400, b"hello": 422, good[: len(good) // 2]: 422, b"GIF89a" + good: 422, bomb: 422, large: 422}
    for content, status in cases.items():
        reply = client.post("/predict", content=content)
        assert (reply.status_code, list(reply.json())) == (status, ["error", "code"]), content[:9]
    for content in (bomb, large):
        assert client.post("/predict", content=content).json()["code"] == "picture-pixels"
    mixed = client.post("/predict", files=[("a", good), ("b", b"no")]).json()["predictions"]
    assert "class" in mixed[0]
    assert mixed[1] == {"error": "it is neither PNG nor JPEG", "code": "picture-format"}
    for body in ("[]", '{"pictures": [1]}', '{"pictures": ["*"]}', "{", "[" * 10**5, "{}"):
        assert client.post("/predict", content=body, headers=JSON).status_code == 400, body[:20]
    many = {"pictures": [base64.b64encode(good).decode()] * 65}
    assert client.post("/predict", json=many).status_code == 400
    assert client.post("/predict", files=[("p", good)] * 65).status_code == 400
    assert client.post("/predict", content=b"--x", headers={"content-type": "multipart/form-data"}).status_code == 400
    assert client.post("/predict", content=good).status_code == 200


def test_bodies_are_bounded_in_size_and_time(listen: Listen) -> None:
    client = listen(body=1000, seconds=0.5)
    assert client.post("/predict", content=b"x" * 1001).status_code == 413
    assert client.post("/predict", content=(b"x" * 600 for _ in range(9))).status_code == 413  # of unknown length
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx")
        slow.settimeout(20)
        assert slow.recv(200).startswith(b"HTTP/1.1 408")
    client = listen(body=1000, bodies=500)
    assert client.post("/predict", content=b"x" * 501).status_code == 503
    for _ in range(3):  # what was refused is no longer counted
        assert client.post("/predict", content=b"x" * 400).status_code == 422


def test_actions(listen: Listen) -> None:
    client, files = listen(), [("p", data) for data in digits(32)]
    assert client.post("/reset", json={}).status_code == 400  # there is no stream yet
    client.post("/predict", params={"wait": True}, files=files)
    client.post("/predict", files=files)  # waits in the queue, perhaps
    assert client.post("/snapshot", json={"reason": "one"}).json()["number"] == 1
    assert client.post("/rollback", json={"to": 7}).status_code == 404
    assert client.post("/rollback", json={"to": "x"}).status_code == 400
    assert client.post("/rollback", json={"reason": "worse"}).json()["done"] == "back to snapshot 1"
    assert client.post("/freeze", json={"frozen": "no"}).status_code == 400
    client.post("/freeze", json={})
    (frozen,) = client.post("/predict", files=files[:1]).json()["predictions"]
    assert (frozen["learnt"], frozen["reason"]) == (False, FROZEN)
    client.post("/freeze", json={"frozen": False, "reason": "\x1b[31m<b>"})
    assert client.post("/export", json={}).status_code == 200
    assert client.post("/reset", json={}).status_code == 200
    wait_for(lambda: [stream.users for stream in client.service.pool.resident()] == [0])
    log = [json.loads(line) for line in (client.service.storage.folder / "actions.jsonl").read_text().splitlines()]
    assert [one["action"] for one in log] == ["snapshot", "rollback", "freeze", "freeze", "export", "reset"]
    assert log[3]["reason"] == "\\x1b[31m<b>"
    assert all(one["time"] > 0 for one in log)


def test_metrics_health_and_openapi(listen: Listen) -> None:
    client = listen()
    client.post("/predict", params={"stream": "cam", "wait": True}, files=[("p", data) for data in digits(32)])
    lines = client.get("/metrics").text.splitlines()
    assert 'testdg_pictures_total{stream="cam"} 32.0' in lines
    for line in lines:
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0
    assert client.get("/healthz").json() == {"status": "ok", "problems": []}
    client.service.storage.problems["states"] = "states are not being saved: No space left on device"
    degraded = client.get("/healthz").json()
    assert degraded["status"] == "degraded"
    assert "No space" in degraded["problems"][0]
    client.service.storage.problems.clear()
    paths = client.get("/openapi.json").json()["paths"]
    actions = {"/reset", "/rollback", "/snapshot", "/freeze", "/export"}
    assert paths.keys() == actions | {"/predict", "/state", "/events", "/metrics", "/healthz", "/login"}
    described = client.get("/openapi.json").json()["components"]["schemas"]
    answer = client.post("/predict", content=digits(1)[0]).json()
    assert described["Predictions"]["properties"].keys() == answer.keys()
    assert described["PicturePrediction"]["properties"].keys() == answer["predictions"][0].keys() | {"map"}


def events(client: httpx.Client, count: int, last: str = "") -> list[tuple[str, dict]]:
    found: list[tuple[str, dict]] = []
    with client.stream("GET", "/events", headers={"last-event-id": last}) as reply:
        number = ""
        for line in reply.iter_lines():
            number = line[4:] if line.startswith("id: ") else number
            if line.startswith("data: "):
                found.append((number, json.loads(line[6:])))
            if len(found) == count:
                return found
    raise AssertionError("it ended early")


def test_events_resume_after_a_lost_connection(listen: Listen) -> None:
    client = listen()
    assert events(client, 1)[0][1]["state"]["streams"] == []
    client.post("/predict", params={"wait": True}, files=[("p", data) for data in digits(32)])
    client.post("/freeze", json={"reason": "first"})
    number, first = events(client, 1)[0]
    assert first["first"] is True
    assert "first" in first["marks"][-1]["text"]
    client.post("/freeze", json={"reason": "second"})
    wait_for(lambda: client.service.pool.resident()[0].timeline.samples[False] != [])
    then = events(client, 1, number)[0][1]
    assert then["first"] is False
    assert [one["text"].rpartition(": ")[2] for one in then["marks"]] == ["second"]
    assert events(client, 1, "00000000-5")[0][1]["first"] is True  # of another server


def test_the_page_loads_nothing_and_its_policy_is_strict(listen: Listen) -> None:
    reply = listen().get("/")
    policy = reply.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "'sha256-" in policy
    assert "http" not in reply.text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "innerHTML" not in reply.text
    assert {reply.headers[key] for key in ("x-content-type-options", "x-frame-options")} == {"nosniff", "DENY"}


def test_other_sites_and_hosts_are_refused(listen: Listen) -> None:
    client, picture = listen(), digits(1)[0]
    own = str(client.base_url).rstrip("/")
    foreign = [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},  # a name that leads here by itself
        {"host": "127.0.0.1.evil.example"},
    ]
    for headers in foreign:
        assert client.post("/predict", content=picture, headers=headers).status_code == 403, headers
        assert client.get("/state", headers=headers).status_code == 403, headers
    for headers in ({"origin": own, "sec-fetch-site": "same-origin"}, {"host": "localhost:1"}, {}):
        assert client.post("/predict", content=picture, headers=headers).status_code == 200, headers
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert client.post("/reset", content="{}", headers={"content-type": kind}).status_code == 400
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to the page


def test_every_address_requires_the_token(listen: Listen, caplog: pytest.LogCaptureFixture) -> None:
    client, picture = listen(Token(SECRET)), digits(1)[0]
    for path in ("/state", "/metrics", "/events", "/openapi.json"):
        assert client.get(path).status_code == 401, path
        assert client.get(path, params={"token": SECRET}).status_code == 401, path
    for path in ("/predict", "/reset", "/rollback", "/snapshot", "/freeze", "/export"):
        assert client.post(path, content=picture).status_code == 401, path
        assert client.post(path, content=picture, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/").status_code == 200
    assert client.get("/healthz").status_code == 200
    bearer = {"authorization": f"Bearer {SECRET}", "host": "robot.example"}
    assert client.post("/predict", content=picture, headers=bearer).status_code == 200
    assert client.post("/login", json={"token": "wrong"}).status_code == 401
    assert client.post("/login", json={"token": 5}).status_code == 400
    cookie = client.post("/login", json={"token": SECRET}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert SECRET not in cookie
    assert client.get("/state").status_code == 200  # by the cookie
    client.cookies.clear()
    client.cookies.set("testdg", "0" * 64)
    assert client.get("/state").status_code == 401
    assert SECRET not in caplog.text


def test_tokens_and_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTDG_TOKEN", raising=False)
    assert find_token(None) is None
    monkeypatch.setenv("TESTDG_TOKEN", "short")
    with refused("weak-token", 16):
        find_token(None)
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o644)
    with refused("exposed-token", file):
        find_token(file)
    file.chmod(0o600)
    found = find_token(file)
    assert found is not None
    assert found.matches(SECRET)
    assert not found.matches(SECRET + "x")
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "example.com", "")] == [False] * 5


def test_a_segmentation_answers_with_an_index_png(start: Callable[..., Service], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = load_model(tiny_segformer(4), preprocessing=Preprocessing((32, 32)))
    service = start(tmp_path / "maps", open_source(model, PictureOptions(method="source", device="cpu")))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8))
    file = io.BytesIO()
    picture.save(file, "PNG")
    app = make_app(service)

    async def ask(accept: str) -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/predict", content=file.getvalue(), headers={"accept": accept})

    reply = asyncio.run(ask("image/png"))
    assert reply.headers["content-type"] == "image/png"
    values = np.array(Image.open(io.BytesIO(reply.content)))
    assert values.shape == (40, 56)
    assert values.max() < 4
    (found,) = asyncio.run(ask("application/json")).json()["predictions"]
    assert np.array_equal(np.array(Image.open(io.BytesIO(base64.b64decode(found["map"])))), values)
    assert (found["learnt"], found["reason"]) == (False, "the method does not learn")


def test_too_many_requests_are_refused_for_now(listen: Listen) -> None:
    client = listen(requests=1, watchers=0)
    with client.service.admitted():
        reply = client.post("/predict", content=digits(1)[0])
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert client.get("/events").status_code == 503
