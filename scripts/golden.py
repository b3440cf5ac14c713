"""Record the results of many commands, and compare them digit for digit after a change of the code.

    python scripts/golden.py record FOLDER             # run all parts and write their results as text files
    python scripts/golden.py compare FOLDER            # run them again and show every difference (exit code 1 if any)
    python scripts/golden.py compare FOLDER --numbers  # without messages.txt and help.txt
    python scripts/golden.py compare FOLDER --only run,bench

Modules may move: the script uses only the command line, the HTTP interface and the names of `testdg` itself. It removes
times, versions, checksums, temporary paths and the hashes in names of folders. Sums differ between processors and
between versions of torch, so record and compare on one machine. It takes a few minutes on one core.
"""

import argparse
import base64
import csv
import difflib
import hashlib
import io
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

QUIET = subprocess.DEVNULL
WORDS = ("messages.txt", "help.txt")
"""Files whose wording may change on purpose."""
DROPPED = ("seconds", "versions", "checksum", "images_per_second")
VOLATILE = ("uptime", "rate", "saved", "snapshot", "pause", "state_bytes")
"""Times and sizes in answers of the server."""
SETTINGS = "OMP_NUM_THREADS=1 COLUMNS=100 NO_COLOR=1 TERM=dumb MPLBACKEND=Agg HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1"
SMALL = "--images 40 --domains fog,contrast"
THREE = "--images 40 --domains fog,contrast,snow"
ALL = (
    "source,actmad,align,becotta,cmf,continual_mae,cotta,dept,deyo,dpcore,eata,ecotta,foa,neo,obao,pseudo_label,rem,"
    "roid,rotta,sar,t3a,tent,testdg,testdg_aligned,vdp,versatile,vida"
)
GRID = """method = ["tent", "eata"]
seeds = [0, 1]
images = 40
domains = ["fog", "contrast"]
[[run]]
[[run]]
name = "TENT, fast"
method = "tent"
settings = { learning_rate = 0.01, steps = 2 }
"""
RUNS = f"""
all: run --method {ALL} {SMALL} --out all
guard: run --method tent,testdg,align --guard {SMALL} --out guard --json
set: run --method tent,cotta --set tent.learning_rate=0.01 --set tent.steps=2 --preset none {SMALL} --out set --seed 3
source: run --method align --source clean {SMALL} --out source --json
held-out: run --protocol held-out,held_out=1 {THREE} --out protocols
dirichlet: run --protocol dirichlet {THREE} --out protocols --json
orders: run --protocol orders --method tent {SMALL} --out protocols
protocols: bench --methods tent --protocols leave-one-out,gradual,cyclic,rounds=2,mixed {THREE} --out protocols --json
train: train --benchmark streets --model tiny --epochs 2 --images 16 --out seg
streets: run --benchmark streets --model seg --method tent,align,svdp,testdg,cotta --images 2 --domains night,fog
train-cnn: train --benchmark digits-c --model cnn0 --epochs 20 --learning-rate 0.003 --out cnn
cnn: run --model cnn --method tent,align,roid,rotta,testdg_aligned,testdg {SMALL} --out batchnorm
report: report all --out report
"""
_GRID = f"bench --methods tent,testdg --seeds 0,1 --protocols continual,held-out,held_out=1 --guard {THREE} --out bench"
BENCHES = f"""
json: {_GRID} --json
text: {_GRID} --csv b.csv --markdown b.md --jsonl b.jsonl
grid: bench grid.toml --out bench --json
ablate: ablate components --images 20 --domains fog,contrast --out bench
tune: tune tent --rates 1e-3,1e-2 --images 40 --domains fog --csv t.csv --markdown t.md --out bench
tuned: bench --methods tent --tuned tuned.toml {SMALL} --out bench --json
leaderboard: leaderboard tent --streams continual,dirichlet --no-cost --report board {SMALL} --out bench
stream: analyze stream {SMALL} --runs bench --json
probes: analyze probes {SMALL} --runs bench --json
parameters: analyze parameters {SMALL} --runs bench --json
"""
ADAPTS = """
1: adapt pictures --model model --source clean --save-state state --export exported --json --out a1
2: adapt pictures --model model --source clean --no-guard --batch-size 10 --json --out a2
3: adapt pictures --model model --method source --json --out a3
4: adapt pictures --model model --method tent --set learning_rate=0.01 --save-state tent-state --json --out a4
5: adapt pictures --model model --load-state state --json --out a5
6: adapt pictures --model model --method tent --load-state tent-state --json --out a6
7: adapt pictures --model exported --method source --json --out a7
"""
COMMANDS = (
    "|adapt|serve|run|bench|tune|leaderboard|ablate|analyze|report|methods|check-method|benchmarks|corrupt|"
    "train|convert"
)
WRONG = """
run --method tnet | nothing | run --foo | run --method tent --set stepz=1 | ablate | analyze
| run --method tent --set steps | run --method tent --set steps=one | run --method tent --set optimizer=adm
| run --method tent --set learning_rate=-1 | run --method tent,t3a --set steps=1 | run --method tent --set cotta.rst=1
| run --method source --guard | run --method tent --source clean | run --method align --source missing
| run --seed 0,1 | run --seed x | run --benchmark digits | run --model ./missing | run --preset nothing
| run --benchmark cifar10-c --data missing | run --tuned no.toml | run --protocol bad | run --protocol cyclic,rounds=0
| run --protocol cyclic,turns=2 | run --protocol held-out,held_out=9 | run --protocol dirichlet,concentration=x
| run --domains fogg | run --images 0 | run --images x | run --severity 6 | run --batch-size 0
| run --precision fp8 | run --device gpu | run --track x | run --preprocessing paper | run --out broken.toml | bench
| bench missing.toml | bench broken.toml | bench unknown.toml | bench --methods tent --jobs 0
| bench --methods tent --engine rya | bench --methods tent --csv none/x.csv | bench --methods tent --seeds 0,x
| ablate nothing | analyze nothing | tune tent --rates x | leaderboard tentt | leaderboard tent --streams nothing
| report missing | methods tentt | benchmarks --check missing | adapt pictures --out wrong
| adapt pictures --out wrong --model ./missing | adapt missing --model model --out wrong
| adapt pictures --model model --out wrong --source missing | serve | serve --model model --host 0.0.0.0
| adapt pictures --model model --out wrong --method tent --set steps=0.5 | serve --model model --method nonsense
| adapt pictures --model model --out wrong --method tent --load-state missing | convert missing
| train --benchmark digits-c --model nothing/here --out wrong
"""


# Removing what differs between two runs


def plain(value: Any) -> Any:
    """A JSON value without times, versions and checksums (`events` is one if it is a text)."""
    if isinstance(value, dict):
        dropped = {*DROPPED, "events"} if isinstance(value.get("events"), str) else DROPPED
        return {k: plain(v) for k, v in value.items() if k not in dropped}
    return [plain(one) for one in value] if isinstance(value, list) else value


def normal(text: str, place: Path) -> str:
    """A text without times, hashes and temporary paths."""
    with suppress(ValueError):  # JSON, or a line of JSON each
        text = json.dumps(plain(json.loads(text)), indent=1)
    if text.startswith("{") and "\n{" in text:
        with suppress(ValueError):
            text = "\n".join(json.dumps(plain(json.loads(line))) for line in text.splitlines() if line)
    text = text.replace(str(place), "TMP")
    text = re.sub(r"-([0-9a-f]{10}|[0-9a-f]{8})(?![0-9a-f])", "-HASH", text)
    text = re.sub(r"\(\d[\d.]* (s|min|h)\)", "(TIME)", text)
    text = re.sub(r", about [\d.]+ (s|min|h) left|, [\d.]+ a second|, [\d.]+/s", "", text)
    return timeless(text)


def timeless(text: str) -> str:
    """Tables without their column of seconds, in plain text and Markdown."""
    lines, end, cell = [], 0, 0
    for line in text.splitlines():
        if line.startswith("|"):
            cells = line.split("|")
            cell = [one.strip() for one in cells].index("seconds") if "seconds" in line else cell
            lines.append("|".join(cells[:cell] + cells[cell + 1 :]) if cell else line)
            continue
        found = re.search(r"  seconds\b", line)
        end, cell = found.end() if found else end if line else 0, 0
        lines.append((line[: max(end - 9, 0)] + line[end:]).rstrip() if end else line)
    return "\n".join(lines) + "\n"


def table(text: str, place: Path) -> str:
    """A CSV file without its column of seconds, or its rows of seconds."""
    head, *rows = csv.reader(io.StringIO(normal(text, place)))
    columns = [number for number, name in enumerate(head) if name != "seconds"]
    rows = [[row[i] for i in columns] for row in (head, *(one for one in rows if "seconds" not in one))]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


class Golden:
    """Runs commands in a temporary folder and stores their results, a text for each name."""

    def __init__(self, place: Path) -> None:
        self.place, self.texts = place, dict[str, str]()

    def add(self, name: str, value: Any) -> None:
        """Append a text or a JSON value to the text of a name."""
        text = value if isinstance(value, str) else json.dumps(value, indent=1)
        self.texts[name] = self.texts.get(name, "") + normal(text, self.place)

    def run(self, name: str, line: str) -> None:
        """Run a command in a process of its own and store its output."""
        command = [sys.executable, "-m", "testdg", *line.split()]
        done = subprocess.run(command, cwd=self.place, capture_output=True, text=True)
        self.add_output(name, line, done.returncode, done.stdout, done.stderr)

    def steps(self, part: str, lines: str) -> None:
        """Run commands in forks of this process; every line is a name and a command."""
        for line in lines.strip().splitlines():
            name, _, command = line.partition(": ")
            self.add_output(f"{part}.{name}", command, *self.forked(command))

    def add_output(self, name: str, line: str, code: int, out: str, errors: str) -> None:
        """Store an exit code, the standard output and, after a failure, the standard error."""
        output = normal(out, self.place) + (normal(errors, self.place) if code else "")
        self.texts[f"{name}.txt"] = f"$ testdg {line}\nexit code {code}\n{output}"

    def forked(self, line: str) -> tuple[int, str, str]:
        """Run a command in a fork of this process, which has imported torch already; this is faster."""
        files = [self.place / "stdout", self.place / "stderr"]
        sys.stdout.flush()
        if not (child := os.fork()):
            os.chdir(self.place)
            for number, file in enumerate(files, 1):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.argv, code = ["testdg", *line.split()], 0
            try:
                runpy.run_module("testdg", run_name="__main__", alter_sys=True)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, *(file.read_text(encoding="utf-8") for file in files)

    def files(self, name: str, *paths: str) -> None:
        """Store the content of files."""
        for path in paths:
            file = self.place / path
            text = file.read_text(encoding="utf-8") if file.is_file() else f"{path} is missing"
            shorten = table if file.suffix == ".csv" and file.is_file() else normal
            self.texts[f"{name}.{file.name}.txt"] = shorten(text, self.place)

    def folders(self, name: str, runs: str) -> None:
        """Store the content of run folders; hashes in their names may differ."""
        found = []
        for folder in (self.place / runs).glob("*/"):
            files = [file for file in ("config.toml", "result.json", "events.jsonl") if (folder / file).exists()]
            texts = [f"== {file}\n{normal((folder / file).read_text(), self.place)}" for file in files]
            found.append(f"==== {normal(folder.name, self.place)}" + "".join(texts))
        self.texts[f"{name}.folders.txt"] = "".join(sorted(found))

    def listing(self, name: str, folder: str) -> None:
        """Store the names of the files in a folder."""
        files = sorted(str(one.relative_to(self.place)) for one in (self.place / folder).rglob("*") if one.is_file())
        self.add(f"{name}.listing.txt", "\n".join(files))


# Pictures and models


def pictures(folder: Path, images: Any) -> None:
    """Write images as PNG files."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for number, image in enumerate(images):
        values = image.permute(1, 2, 0) * (255 if image.is_floating_point() else 1)
        Image.fromarray(values.round().byte().numpy()).save(folder / f"p{number:03}.png")


def network(folder: Path, preprocessor: str) -> None:
    """Write a small network with BatchNorm and random weights as a model folder."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model, widths = torch.nn.Module(), [3, 8, 16, 32]
    parts = [
        torch.nn.Sequential(torch.nn.Conv2d(a, b, 3, bias=False), torch.nn.BatchNorm2d(b)) for a, b in pairwise(widths)
    ]
    model.stages, model.head = torch.nn.Sequential(*parts), torch.nn.Linear(widths[-1], 10)
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "testdg-tiny-cnn", "classes": 10, "width": 8}))
    (folder / "preprocessor_config.json").write_text(preprocessor)


def prepare(golden: Golden) -> None:
    """Train the source model once, and write pictures, models and grids."""
    import testdg

    place = golden.place
    golden.run("prepare", f"run --method source {SMALL} --out prepared --json")
    testdg.load_model(next(Path(os.environ["TESTDG_CACHE"]).glob("digits-c*/config.json")).parent).save(place / "model")
    benchmark = testdg.load_benchmark("digits-c")
    pictures(place / "clean", benchmark.train().images[:100])
    images = [one for name in ("fog", "contrast") for one in benchmark.domain(name).read(0, 60)[0]]
    pictures(place / "pictures", images)
    (place / "pictures" / "p0600.png").write_bytes(b"no picture")
    network(place / "cnn0", (place / "model" / "preprocessor_config.json").read_text())
    (place / "grid.toml").write_text(GRID)
    (place / "broken.toml").write_text("method = [")
    (place / "unknown.toml").write_text('methodd = "tent"\nimages = -1\n')


# Parts


def part_run(golden: Golden) -> None:
    """Runs of every method; with a guard, settings, protocols and two more models; one run is read back."""
    tent = "run --method tent --images 100 --domains fog,contrast,snow --out tent"
    golden.run("run.tent", tent)
    golden.run("run.tent.json", f"{tent} --json")
    first = golden.texts["run.tent.json.txt"]
    golden.run("run.tent.json", f"{tent} --json")
    golden.add("run.again.txt", f"read back the same: {first == golden.texts['run.tent.json.txt']}")
    golden.steps("run", RUNS)
    for runs in ("tent", "all", "guard", "set", "source", "protocols", "runs", "batchnorm"):
        golden.folders(f"run.{runs}", runs)
    golden.files("run.report", "report/report.md", "report/report.csv", "report/runs.jsonl")
    golden.listing("run.report", "report")


def part_bench(golden: Golden) -> None:
    """Grids, tuning, an ablation, a leaderboard and analyses."""
    golden.steps("bench", BENCHES)
    golden.files("bench", "b.csv", "b.md", "b.jsonl", "tuned.toml", "t.csv", "t.md")
    golden.files("bench", "board/leaderboard.md", "board/runs.jsonl")
    golden.files("bench", *(f"analyses/{name}.json" for name in ("stream", "probes", "parameters")))
    golden.listing("bench.leaderboard", "board")


def part_adapt(golden: Golden) -> None:
    """Streams of pictures with and without a guard, saved states, an export; and the names of `testdg` in Python."""
    golden.steps("adapt", ADAPTS)
    for number in range(1, 8):
        paths = [f"a{number}/{file}" for file in ("predictions.csv", "skipped.csv", "config.toml", "summary.json")]
        golden.files(f"adapt.{number}", *paths)
    for name, compute in {"logits": logits, "weights": weights, "library": library}.items():
        try:
            golden.add(f"adapt.{name}.txt", compute(golden))
        except Exception:
            golden.add(f"adapt.{name}.txt", traceback.format_exc())


def images_of(count: int) -> Any:
    """Images in [0, 1] of a stream."""
    import testdg

    return testdg.load_benchmark("digits-c").domain("fog").read(0, count)[0]


def logits(golden: Golden) -> Any:
    """Logits of the exported model."""
    import testdg

    model = testdg.load_model(golden.place / "exported")
    return model(model.prepare(images_of(4))).logits.tolist()


def weights(golden: Golden) -> Any:
    """Checksums of the weights of the exported model."""
    from safetensors.torch import load_file

    found = {}
    for file in sorted((golden.place / "exported").glob("*.safetensors")):
        for name, value in sorted(load_file(file).items()):
            found[f"{file.name} {name}"] = hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16]
    return found


def library(golden: Golden) -> Any:
    """Predictions of adapters in a loop, with and without a guard, and of `adapt_stream` with a list of images."""
    import testdg

    found, images, clean = {}, images_of(60), testdg.load_benchmark("digits-c").train().images[:64] / 255
    for method in ("tent", "cotta", "align", "testdg"):
        for guarded in (False, True):
            adapter = testdg.adapt(testdg.load_model(golden.place / "model"), method, preset="digits-c")
            adapter = testdg.guard(adapter, probe=clean) if guarded else adapter
            if method == "align":
                adapter.warm_up([clean])
            found[f"{method}, guard {guarded}"] = [adapter(images[i : i + 20])[:2].tolist() for i in (0, 20, 40)]
    stream = testdg.adapt_stream(golden.place / "model", list(images), "tent", batch_size=20)
    found["stream"] = [[one.class_name, one.confidence, one.source_class_name, one.learnt] for one in stream]
    return found


def killed(golden: Golden, line: str, watched: str, lines: int) -> None:
    """Start a command and kill it when a file that it writes has some lines."""
    command = [sys.executable, "-m", "testdg", *line.split()]
    process = subprocess.Popen(command, cwd=golden.place, stdout=QUIET, stderr=QUIET)
    while process.poll() is None:
        if sum(one.read_bytes().count(b"\n") for one in golden.place.glob(watched)) >= lines:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.002)
    golden.add("kill.txt", f"{line.split()[0]} was killed: {process.returncode == -signal.SIGKILL}\n")


def part_kill(golden: Golden) -> None:
    """Killed commands that were resumed have the results of undisturbed ones."""
    run = "run --method cotta --images 60 --domains fog,contrast --batch-size 2 --json --out"
    adapt = "adapt pictures --model model --source clean --batch-size 2 --json --out"
    killed(golden, f"{run} killed", "killed/*cotta*/events.jsonl", 15)
    killed(golden, f"{adapt} killed-adapt", "killed-adapt/predictions.csv", 30)
    for name in ("quiet", "killed"):
        golden.steps("kill", f"run.{name}: {run} {name}\nadapt.{name}: {adapt} {name}-adapt")
        golden.folders(f"kill.{name}", name)
        golden.files(f"kill.{name}", f"{name}-adapt/predictions.csv", f"{name}-adapt/skipped.csv")
    for file in ("folders", "predictions.csv"):
        same = golden.texts[f"kill.quiet.{file}.txt"] == golden.texts[f"kill.killed.{file}.txt"]
        golden.add("kill.txt", f"{file}: the end is the same: {same}")


def request(port: int, path: str, body: Any = None) -> str:
    """Send a request to the server; bytes are a picture, other bodies JSON."""
    kind, data = ("image/png", body) if isinstance(body, bytes) else ("application/json", json.dumps(body).encode())
    message = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data if body is not None else None)
    message.add_header("content-type", kind)
    try:
        with urllib.request.urlopen(message, timeout=60) as answer:
            values = {k: v for k, v in json.load(answer).items() if k not in VOLATILE}
            return f"{answer.status} {json.dumps(values)}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        try:
            request(port, "/healthz")
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server did not start")


def part_serve(golden: Golden) -> None:
    """A server: predictions, learning, actions, states."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    words = f"serve --model model --source clean --out served --port {port}".split()
    process = subprocess.Popen([sys.executable, "-m", "testdg", *words], cwd=golden.place, stdout=QUIET, stderr=QUIET)
    try:
        wait_for(port, process)
        for path, body in requests(golden.place / "pictures"):
            golden.add("serve.txt", f"{path}\n{request(port, path, body)}")
    finally:
        process.send_signal(signal.SIGTERM)
        golden.add("serve.txt", f"exit code {process.wait(60)}")


def requests(folder: Path) -> list[tuple[str, Any]]:
    """Paths and bodies of requests, in order."""
    files = [file.read_bytes() for file in sorted(folder.glob("p???.png"))]
    many = [{"pictures": [base64.b64encode(one).decode() for one in files[i : i + 30]]} for i in (0, 30, 60, 90)]
    predict, state, why = "/predict?wait=true", "/state?stream=main", {"reason": "try"}
    return [
        *((predict, one) for one in files[:3]), (state, None), ("/state", None), (predict, many[0]), (predict, many[1]),
        (state, None), ("/snapshot", why), (predict, many[2]), (predict, many[3]), (state, None), ("/rollback", why),
        (predict, files[7]), ("/reset", why), (predict, files[7]), (state, None), ("/freeze", why), (predict, files[9]),
        ("/freeze", {"frozen": False}), ("/rollback", {"to": 7}), ("/export", why), ("/predict", b"no picture"),
        ("/predict?stream=NO", files[0]), (state, None), ("/healthz", None),
    ]  # fmt: skip


def part_texts(golden: Golden) -> None:
    """Listings, help, error messages and exit codes."""
    for name in ("", "svdp", *ALL.split(",")):
        golden.add("texts.methods.txt", golden.forked(f"methods {name} --json")[1])
    golden.add("texts.benchmarks.txt", golden.forked("benchmarks --json")[1])
    for name in COMMANDS.split("|"):
        golden.add("help.txt", f"$ testdg {name} --help\n{golden.forked(f'{name} --help')[1]}")
    for line in (one.strip() for one in WRONG.replace("\n", " ").split("|")):
        name, _, rest = line.partition(" ")
        code, out, err = golden.forked(f"{name} {SMALL} {rest}" if name in ("run", "bench") else line)
        golden.add("messages.txt", f"$ testdg {line}\nexit code {code}\n{out}{err}")
        golden.add("texts.codes.txt", f"{code}  testdg {line}")


PARTS: dict[str, Callable[[Golden], None]] = {
    "texts": part_texts,
    "run": part_run,
    "bench": part_bench,
    "kill": part_kill,
    "serve": part_serve,
    "adapt": part_adapt,  # last: it learns in this process, which must not be forked after that
}


def run_parts(parts: list[str]) -> dict[str, str]:
    """Run the parts and return their texts; a part that fails has its traceback as a text."""
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        golden = Golden(Path(temporary).resolve())
        os.environ.update(one.split("=") for one in SETTINGS.split())
        os.environ.update(TESTDG_CACHE=str(golden.place / "cache"))
        os.environ.pop("TESTDG_TOKEN", None)
        for name, part in {"prepare": prepare, **{name: PARTS[name] for name in PARTS if name in parts}}.items():
            begun = time.monotonic()
            try:
                part(golden)
            except Exception:
                golden.add(f"{name}.broken.txt", traceback.format_exc())
                traceback.print_exc()
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        return golden.texts


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Names of files that differ, with the first lines that do."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found.append(f"{name}: {'is new' if old is None else 'is missing'}")
        elif old != new:
            lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))
            more = f"\n  ... {len(lines) - 14} more" if len(lines) > 14 else ""
            found.append(f"{name}:\n  " + "\n  ".join(line[:300] for line in lines[2:14]) + more)
    return found


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--numbers", action="store_true", help=f"compare without {' and '.join(WORDS)}")
    chosen = parser.parse_args()
    parts = chosen.only.split(",")
    if wrong := set(parts) - set(PARTS):
        parser.error(f"unknown parts {', '.join(wrong)}; known: {', '.join(PARTS)}")
    found = run_parts(parts)
    if chosen.action == "record":
        chosen.folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (chosen.folder / name).write_text(text, encoding="utf-8")
        print(f"{len(found)} files in {chosen.folder}")
        return 0
    before = {file.name: file.read_text(encoding="utf-8") for file in chosen.folder.glob("*.txt")}
    heads = ("prepare", *parts, *(("help", "messages") if "texts" in parts else ()))
    before = {name: text for name, text in before.items() if name.split(".")[0] in heads}
    if chosen.numbers:
        before, found = ({n: t for n, t in one.items() if n not in WORDS} for one in (before, found))
    changed = differences(before, found)
    print("\n".join([*changed, f"{len(changed)} of {len(before)} files differ"]))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
