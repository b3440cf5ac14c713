"""Count the files and functions of `testdg` that commands execute: a measure of how divided the code is.

    python scripts/trace_calls.py              # all three paths
    python scripts/trace_calls.py run --list   # one of them, function by function

`run` adapts TENT to two batches, `adapt` predicts eight pictures of a folder, `serve` answers one JPEG. Model and
source data exist before the trace begins. Code that runs while modules are imported, lambdas and comprehensions are not
counted; functions in other threads are.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import testdg

PACKAGE = str(Path(testdg.__file__).parent)
Calls = set[tuple[str, str]]
"""File and qualified name of functions."""


_noted: list[Calls] = []


def _note(frame: FrameType, event: str, _: object) -> None:
    """The profile function of every thread; it records calls while a trace is active."""
    code = frame.f_code
    if _noted and event == "call" and code.co_filename.startswith(PACKAGE) and not importing(frame):
        _noted[0].add((code.co_filename.removeprefix(PACKAGE + "/"), code.co_qualname))


@contextlib.contextmanager
def traced() -> Iterator[Calls]:
    """Record every function of the package that is called inside, in all threads."""
    calls: Calls = set()
    _noted.append(calls)
    sys.setprofile(_note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        _noted.clear()


def importing(frame: FrameType) -> bool:
    """Whether a frame is the body of a module or class, an unnamed function, or called while a module is imported."""
    at: FrameType | None = frame
    name = frame.f_code.co_qualname.rpartition(".")[2]
    if name.startswith("<") or not frame.f_code.co_flags & 0x2:  # class bodies have no fast locals
        return True
    while at is not None:
        if at.f_code.co_name == "<module>" and at.f_code.co_filename.startswith(PACKAGE):
            return True
        at = at.f_back
    return False


def command(*words: object) -> None:
    """Run a command of the command line, silently."""
    from testdg.cli.app import execute

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = execute([str(word) for word in words])
    if code:
        raise SystemExit(f"testdg {' '.join(map(str, words))}: {err.getvalue()}")


def prepare(folder: Path) -> dict[str, Path]:
    """A tiny model and a folder of pictures."""
    from PIL import Image

    benchmark = testdg.load_benchmark("digits-c", images=64, domains=["fog"])
    command("run", "--images", 20, "--domains", "fog", "--method", "source", "--out", folder / "warm")
    from testdg.runs.training.embedded import default_recipe, trained_model

    model = trained_model(benchmark, default_recipe(benchmark), lambda *_: None)
    places = {"model": folder / "model", "frames": folder / "frames", "source": folder / "source"}
    model.save(places["model"])
    images, _ = benchmark.domain("fog").read(0, 64)
    for name, chosen in (("frames", images[:8]), ("source", images)):
        places[name].mkdir()
        for number, image in enumerate(chosen):
            Image.fromarray((255 * image).byte().permute(1, 2, 0).numpy()).save(places[name] / f"{number}.jpg")
    return places


def trace_run(folder: Path, _: dict[str, Path]) -> Callable[[], None]:
    """Source and TENT on two batches."""
    return partial(command, "run", "--method", "tent", "--images", 40, "--domains", "fog", "--out", folder / "runs")


def trace_adapt(folder: Path, places: dict[str, Path]) -> Callable[[], None]:
    """Eight pictures of a folder."""
    words = ("--model", places["model"], "--source", places["source"], "--out", folder / "out", "--batch-size", 4)
    return partial(command, "adapt", places["frames"], *words, "--set", "source_images=64")


def trace_serve(folder: Path, places: dict[str, Path]) -> Callable[[], None]:
    """One JPEG through the routes of the server, with learning."""
    from fastapi.testclient import TestClient

    from testdg.runs.session import PictureOptions
    from testdg.serve.app import make_app
    from testdg.serve.limits import Limits
    from testdg.serve.service import Service
    from testdg.serve.session import open_source

    choices = PictureOptions(method="testdg_aligned", source=places["source"])
    source = open_source(places["model"], choices, {"source_images": 64})
    service = Service(source, folder / "serve", Limits())
    service.start()
    client = TestClient(make_app(service), base_url="http://127.0.0.1:8000")

    def answer() -> None:
        data = (places["frames"] / "0.jpg").read_bytes()
        response = client.post("/predict?wait=true", content=data, headers={"content-type": "image/jpeg"})
        assert response.status_code == 200, response.text

    answer()  # creates the stream
    return answer


PATHS = {"run": trace_run, "adapt": trace_adapt, "serve": trace_serve}


def main() -> None:
    """Trace paths and print the files and functions that they execute."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", choices=[[], *PATHS])
    parser.add_argument("--list", action="store_true", help="list every function")
    options = parser.parse_args()
    threading.setprofile(_note)  # of threads that are started from here on
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        places = prepare(folder)
        for name in options.paths or PATHS:
            work = PATHS[name]
            ready = work(folder, places)
            with traced() as calls:
                ready()
            report(name, calls, every=options.list)


def report(name: str, calls: Calls, *, every: bool) -> None:
    """Print the numbers, by room or function by function."""
    rooms: dict[str, Calls] = defaultdict(set)
    for file, function in calls:
        rooms[file.rpartition("/")[0].partition("/")[0] or "root"].add((file, function))
    print(f"{name}: {len({file for file, _ in calls})} files, {len(calls)} functions")
    for room, found in sorted(rooms.items(), key=lambda item: -len(item[1])):
        print(f"  {room:<12} {len({file for file, _ in found}):>3} files {len(found):>4} functions")
        for file, function in sorted(found) if every else ():
            print(f"    {file:<40} {function}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    import os

    os._exit(0)  # threads of the server
