"""How fast and how sturdy `testdg serve` is: beside a plain FastAPI endpoint with the same model, and in a storm.

    python benchmarks/serving.py load --model MODEL --pictures FOLDER [--seconds 8] [--rounds 3]
    python benchmarks/serving.py storm --model MODEL --pictures FOLDER [--requests 10000]

`load` starts both servers as processes of their own, in turn, so that both meet the same load of the machine, and asks
them from 1, 8 and 32 clients that wait for their answer; it gives the medians over the rounds. `storm` sends requests of
which one in a hundred is bad, from 16 clients to 3 streams, and counts answers, memory, threads and open files.
The pictures are PNG files, half of which stand for the clean ones; every client goes through the other half.
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

HOST, PORT = "127.0.0.1", 8099
BAD = [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"\xff\xd8\xff" + b"\1" * 400]


def plain(model: str) -> None:
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

    uvicorn.run(app, host=HOST, port=PORT, access_log=False, log_level="error")


def start(kind: str, options: argparse.Namespace, work: Path) -> subprocess.Popen[bytes]:
    if kind == "plain":
        command = [sys.executable, __file__, "plain", "--model", options.model]
    else:
        run = [sys.executable, "-c", "from testdg.cli import main; main()", "serve", "--model", options.model]
        clean = ["--source", str(work / "clean")] if kind != "source" else []
        out = ["--out", str(work / f"out-{kind}"), "--method", kind, "--port", str(PORT), "--device", "cpu"]
        command = [*run, *clean, *out]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            ask("/healthz")
            return process
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{kind} did not start")


def ask(path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{PORT}{path}", timeout=20) as reply:
        text = reply.read()
    return json.loads(text) if text.startswith(b"{") else text.decode()


async def post(reader: Any, writer: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """One request on an open connection, with as little work as possible, since the client shares the cores."""
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(length)


async def client(files: list[bytes], first: int, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection(HOST, PORT)
    number = first
    while time.perf_counter() < until:
        begun = time.perf_counter()
        status, _ = await post(reader, writer, "/predict", files[number % len(files)])
        assert status == 200, status
        times.append(time.perf_counter() - begun)
        number += 1
    writer.close()


async def measure(files: list[bytes], clients: int, seconds: float) -> tuple[float, float, float]:
    """Requests a second, and the middle and the 99th of a hundred times in milliseconds."""
    times: list[float] = []
    begun = time.perf_counter()
    step = len(files) // clients
    await asyncio.gather(*(client(files, step * number, begun + seconds, times) for number in range(clients)))
    cuts = statistics.quantiles(times, n=100)
    return len(times) / (time.perf_counter() - begun), 1e3 * cuts[49], 1e3 * cuts[98]


def load(options: argparse.Namespace, files: list[bytes], work: Path) -> None:
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    kinds = ["plain", *options.methods.split(",")]
    for turn in range(options.rounds):
        for kind in kinds if turn % 2 == 0 else kinds[::-1]:
            process = start(kind, options, work)
            asyncio.run(measure(files, 4, 2))
            for clients in (1, 8, 32):
                found.setdefault((kind, clients), []).append(asyncio.run(measure(files, clients, options.seconds)))
            if kind != "plain":
                state = ask("/state?stream=main")
                print(
                    turn, kind, {key: state[key] for key in ("pictures", "learnt", "not_learnt", "dropped")}, flush=True
                )
            process.terminate()
            process.wait()
    print(f"{'server':16} {'clients':>7} {'a second':>9} {'p50 ms':>7} {'p99 ms':>7} {'of plain':>8}")
    for (kind, clients), rows in found.items():
        rate, middle, late = (statistics.median(column) for column in zip(*rows, strict=True))
        ratios = [own[0] / other[0] for own, other in zip(rows, found["plain", clients], strict=True)]
        share = statistics.median(ratios)
        print(f"{kind:16} {clients:7} {rate:9.1f} {middle:7.1f} {late:7.1f} {share:8.2f}")


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
    told: Counter[str] = Counter()
    numbers = iter(range(count))

    async def one() -> None:
        reader, writer = await asyncio.open_connection(HOST, PORT)
        for number in numbers:
            bad = number % 100 == 50
            body = BAD[number // 100 % len(BAD)] if bad else files[number % len(files)]
            status, answer = await post(reader, writer, f"/predict?stream=s{number % 3}", body)
            told[f"{'bad' if bad else 'good'} {status}"] += 1
            assert "error" in answer.decode() if bad else "predictions" in answer.decode()
            if number % (count // 5) == 0:
                print(number, footprint(process), flush=True)
        writer.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return told


def storm(options: argparse.Namespace, files: list[bytes], work: Path) -> None:
    process = start("testdg_aligned", options, work)
    begun = time.perf_counter()
    told = asyncio.run(rain(files, options.requests, 16, process))
    seconds = time.perf_counter() - begun
    states = [ask(f"/state?stream=s{number}") for number in range(3)]
    counted = {key: sum(state[key] for state in states) for key in ("pictures", "learnt", "not_learnt", "dropped")}
    time.sleep(2)
    print(f"{seconds:.0f} s, answers {dict(told)}, server {counted}, end {footprint(process)}")
    alive = process.poll() is None
    process.terminate()
    print("alive", alive, "ended with", process.wait(60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("load", "storm", "plain"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--methods", default="source,testdg_aligned")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    if options.what == "plain":
        return plain(options.model)
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
