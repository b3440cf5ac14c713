"""Speed and robustness of `testdg serve`: next to a plain FastAPI endpoint with the same model, and under bad requests.

    python benchmarks/serving.py load --model MODEL --pictures FOLDER [--seconds 3] [--rounds 9]
    python benchmarks/serving.py storm --model MODEL --pictures FOLDER [--requests 10000]

`load` starts each server in a process of its own. In every round 1, 8 and 32 clients send requests to one server after
the other for a few seconds, so that all servers see the same load. It prints medians over the rounds, the median ratio
within a round, and the CPU time of the server per request. `storm` sends requests, one in a hundred of them bad, from
16 clients to 3 streams, and counts answers, memory, threads and files. The pictures are PNG files: one half serves as
clean pictures, every client sends the other half.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

HOST, PORT = "127.0.0.1", 8090
BAD = [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"\xff\xd8\xff" + b"\1" * 400]


def plain(model: str, port: int) -> None:
    """The endpoint that everybody writes: no adaptation."""
    import io

    import numpy as np
    import torch
    import uvicorn
    from fastapi import FastAPI, Request
    from PIL import Image
    from starlette.concurrency import run_in_threadpool

    from testdg.models import load_model

    network, app = load_model(model), FastAPI()

    @torch.no_grad()
    def infer(data: bytes) -> dict[str, Any]:
        with Image.open(io.BytesIO(data)) as picture:
            levels = torch.from_numpy(np.array(picture.convert("RGB")))
        image = levels.permute(2, 0, 1)[None].float() / 255
        confidence, label = network(network.prepare(image)).logits.softmax(1).max(1)
        return {"class": int(label), "confidence": float(confidence)}

    @app.post("/predict")
    async def predict(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(infer, await request.body())

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    uvicorn.run(app, host=HOST, port=port, access_log=False, log_level="error")


def start(kind: str, options: argparse.Namespace, work: Path, port: int) -> subprocess.Popen[bytes]:
    if kind == "plain":
        command = [sys.executable, __file__, "plain", "--model", options.model, "--port", str(port)]
    else:
        run = [sys.executable, "-c", "from testdg.cli import main; main()", "serve", "--model", options.model]
        clean = ["--source", str(work / "clean")] if kind != "source" else []
        out = ["--out", str(work / f"out-{kind}"), "--method", kind, "--port", str(port), "--device", "cpu"]
        command = [*run, *clean, *out]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            ask(port, "/healthz")
            return process
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{kind} did not start")


def ask(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=20) as reply:
        text = reply.read()
    return json.loads(text) if text.startswith(b"{") else text.decode()


async def post(reader: Any, writer: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """One request on an open connection, with as little work as possible, since the client shares the cores."""
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(length)


async def client(port: int, files: list[bytes], first: int, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    number = first
    while time.perf_counter() < until:
        begun = time.perf_counter()
        status, _ = await post(reader, writer, "/predict", files[number % len(files)])
        assert status == 200, status
        times.append(time.perf_counter() - begun)
        number += 1
    writer.close()


async def measure(port: int, files: list[bytes], clients: int, seconds: float) -> list[float]:
    """Seconds that each request took."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    first = [len(files) * number // clients for number in range(clients)]
    await asyncio.gather(*(client(port, files, place, until, times) for place in first))
    return times


def one_turn(port: int, files: list[bytes], clients: int, seconds: float, process: Any) -> dict[str, float]:
    """Requests a second, the middle and the 99th of a hundred times, and CPU time for a request, in milliseconds."""
    used, begun = cpu(process), time.perf_counter()
    times = asyncio.run(measure(port, files, clients, seconds))
    wall, cuts = time.perf_counter() - begun, statistics.quantiles(times, n=100)
    per_request = (cpu(process) - used) / len(times)
    return {"a second": len(times) / wall, "p50": 1e3 * cuts[49], "p99": 1e3 * cuts[98], "CPU": 1e3 * per_request}


def cpu(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(options: argparse.Namespace, files: list[bytes], work: Path) -> None:
    kinds = {kind: PORT + number for number, kind in enumerate(["plain", *options.methods.split(",")])}
    servers = {kind: start(kind, options, work, port) for kind, port in kinds.items()}
    try:
        compare(options, files, kinds, servers)
    finally:
        for server in servers.values():
            server.terminate()
            server.wait()


def compare(options: argparse.Namespace, files: list[bytes], kinds: dict[str, int], servers: dict[str, Any]) -> None:
    print(f"{'server':16} {'clients':>7} {'a second':>9} {'p50 ms':>7} {'p99 ms':>7} {'CPU ms':>7} {'of plain':>8}")
    for clients in (1, 8, 32):
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for turn in range(options.rounds + 1):
            for kind, port in kinds.items():
                row = one_turn(port, files, clients, options.seconds, servers[kind])
                found[kind] += [row] if turn else []  # the first one warms up
                while kind != "plain" and ask(port, "/state")["queue"]:
                    time.sleep(0.1)
        for kind, rows in found.items():
            middle = [statistics.median(row[key] for row in rows) for key in ("a second", "p50", "p99", "CPU")]
            pairs = zip(rows, found["plain"], strict=True)
            share = statistics.median(own["a second"] / other["a second"] for own, other in pairs)
            rate, half, late, used = middle
            print(f"{kind:16} {clients:7} {rate:9.1f} {half:7.1f} {late:7.1f} {used:7.2f} {share:8.2f}", flush=True)
    for kind, port in kinds.items():
        if kind != "plain":
            state = ask(port, "/state?stream=main")
            print(kind, {key: state[key] for key in ("pictures", "learnt", "not_learnt", "dropped")})


def footprint(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """Memory in MiB, threads and open files."""
    place = Path("/proc") / str(process.pid)
    pages = int((place / "statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return {
        "MiB": memory,
        "threads": len(list((place / "task").iterdir())),
        "files": len(list((place / "fd").iterdir())),
    }


async def rain(files: list[bytes], count: int, clients: int, process: Any) -> Counter[str]:
    answers: Counter[str] = Counter()
    numbers = iter(range(count))

    async def one() -> None:
        reader, writer = await asyncio.open_connection(HOST, PORT)
        for number in numbers:
            bad = number % 100 == 50
            body = BAD[number // 100 % len(BAD)] if bad else files[number % len(files)]
            status, answer = await post(reader, writer, f"/predict?stream=s{number % 3}", body)
            answers[f"{'bad' if bad else 'good'} {status}"] += 1
            assert "error" in answer.decode() if bad else "predictions" in answer.decode()
            if number % (count // 5) == 0:
                print(number, footprint(process), flush=True)
        writer.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return answers


def storm(options: argparse.Namespace, files: list[bytes], work: Path) -> None:
    process = start("testdg_aligned", options, work, PORT)
    begun = time.perf_counter()
    answers = asyncio.run(rain(files, options.requests, 16, process))
    seconds = time.perf_counter() - begun
    states = [ask(PORT, f"/state?stream=s{number}") for number in range(3)]
    counted = {key: sum(state[key] for state in states) for key in ("pictures", "learnt", "not_learnt", "dropped")}
    time.sleep(2)
    print(f"{seconds:.0f} s, answers {dict(answers)}, server {counted}, end {footprint(process)}")
    alive = process.poll() is None
    process.terminate()
    print("alive", alive, "ended with", process.wait(60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("load", "storm", "plain"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--methods", default="source,testdg_aligned")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    if options.what == "plain":
        return plain(options.model, options.port)
    paths = sorted(options.pictures.rglob("*.png"))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "clean").mkdir()
        for number, path in enumerate(paths[::2]):
            shutil.copy(path, work / "clean" / f"{number}.png")
        files = [path.read_bytes() for path in paths[1::2]]
        {"load": load, "storm": storm}[options.what](options, files, work)


if __name__ == "__main__":
    main()
