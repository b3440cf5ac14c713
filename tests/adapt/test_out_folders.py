"""Streams with a folder: after any interruption, no row is lost, repeated or different."""

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import testdg
from support.errors import refused
from testdg.core.online import load_online
from testdg.data.frames import PictureFolder
from testdg.files import locked
from testdg.models import Preprocessing, load_model
from testdg.models.canvas import Canvas
from testdg.models.segformer import random_segformer
from testdg.report.pictures import draw_summary
from testdg.runs.adapt import Request, Watcher, adapt_frames
from testdg.runs.pictures import Loader, PredictedBatch
from testdg.runs.session import PictureOptions
from testdg.runs.summary import StreamStatistics

SETTINGS = {"source_images": 64, "sketch": "stream"}


pytestmark = pytest.mark.usefixtures("one_thread")


def request(frames: str | Path, network: Path, out: Path, method: str = "tent", **more: Any) -> Request:
    options = PictureOptions(method=method, device="cpu", load_state=more.pop("load_state", None))
    return Request(frames=frames, model=str(network), out=out, options=options, batch_size=8, **more)


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def undisturbed(network: Path, frames: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("undisturbed")
    adapt_frames(request(frames, network, out), draw=draw_summary)
    assert sum(int(row["learnt"]) for row in rows(out)) > 20
    return out


def table(out: Path) -> bytes:
    return (out / "predictions.csv").read_bytes()


class Stopper(Watcher):
    """Calls a function after some batches."""

    def __init__(self, batches: int, function: Callable[[], object]) -> None:
        self.left, self.function = batches, function

    def advanced(self, batch: PredictedBatch, statistics: StreamStatistics) -> None:
        self.left -= 1
        if self.left == 0:
            self.function()


class Died(Exception):
    """Stands for the end of the process: nothing is saved after it."""


def die() -> None:
    raise Died


def test_a_stream_leaves_a_table_a_figure_and_a_summary(network: Path, frames: Path, undisturbed: Path) -> None:
    found = rows(undisturbed)
    assert [int(row["index"]) for row in found] == list(range(60))
    assert sorted(row["file"] for row in found) == sorted(
        path.relative_to(frames).as_posix() for path in frames.glob("*/*")
    )
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert (summary["predictions"], summary["skipped"], summary["method"]) == (60, 0, "tent")
    assert summary["changed_by_adaptation"] == pytest.approx(
        np.mean([float(row["differs"]) for row in found]), abs=1e-4
    )
    with Image.open(undisturbed / "figure.png") as figure:
        assert min(figure.size) > 300
    stream = testdg.adapt_stream(network, frames, "tent", batch_size=8, device="cpu")
    assert [one.class_index for one in stream] == [int(row["class_index"]) for row in found]


@pytest.mark.parametrize(("batches", "save_every"), [(1, 60.0), (4, 0.0), (7, 60.0)])
def test_a_stream_resumes_after_a_crash(
    network: Path, frames: Path, tmp_path: Path, undisturbed: Path, batches: int, save_every: float
) -> None:
    chosen = request(frames, network, tmp_path, save_every=save_every)
    with pytest.raises(Died):
        adapt_frames(chosen, Stopper(batches, die))
    with (tmp_path / "predictions.csv").open("ab") as file:
        file.write(b"9,half a r")
    adapt_frames(chosen)
    assert table(tmp_path) == table(undisturbed)
    before = table(tmp_path)
    adapt_frames(chosen)  # nothing is left to do
    assert table(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_stream_resumes_after_a_kill(network: Path, frames: Path, tmp_path: Path, undisturbed: Path) -> None:
    arguments = ["adapt", str(frames), "--model", str(network), "--method", "tent", "--batch-size", "8"]
    arguments += ["--out", str(tmp_path / "out"), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "testdg", *arguments], env=environment)
    place = tmp_path / "out" / "predictions.csv"
    while process.poll() is None:
        if place.exists() and place.read_bytes().count(b"\n") > 9:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.001)
    assert process.returncode == -signal.SIGKILL
    assert place.read_bytes().count(b"\n") < 61
    adapt_frames(request(frames, network, tmp_path / "out"))
    assert table(tmp_path / "out") == table(undisturbed)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_stream_saves_its_state(network: Path, frames: Path, tmp_path: Path, undisturbed: Path) -> None:
    chosen = request(frames, network, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        adapt_frames(chosen, Stopper(2, lambda: signal.raise_signal(signal.SIGINT)))
    note = json.loads((tmp_path / "state" / "state.json").read_text())["note"]
    assert 2 <= note["batches"] < 8
    adapt_frames(chosen)
    assert table(tmp_path) == table(undisturbed)


@pytest.mark.parametrize("pictures", [0, 3, 4, 7, 11])
def test_a_stop_leaves_no_half_batch(pictures: int, frames: Path) -> None:
    loader, calls = Loader(Canvas(Preprocessing((24, 24))), 3, workers=2), count()
    found = list(loader.batches(PictureFolder(frames), 8, stop=lambda: next(calls) > pictures))
    assert [len(batch) for batch in found] == [8] * len(found)
    assert len(found) < 60 // 8


def test_rows_of_deleted_pictures_stay(network: Path, frames: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "copy", tmp_path / "out"
    shutil.copytree(frames, copy)
    chosen = request(copy, network, out)
    with pytest.raises(Died):
        adapt_frames(chosen, Stopper(3, die))
    written = rows(out)
    assert len(written) == 24
    (copy / written[3]["file"]).unlink()
    adapt_frames(chosen)
    found = rows(out)
    assert found[:24] == written
    assert [int(row["index"]) for row in found] == list(range(60))
    assert len({row["file"] for row in found}) == 60


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_refused_and_no_row_is_damaged(
    network: Path, frames: Path, tmp_path: Path, undisturbed: Path
) -> None:
    chosen = request(frames, network, tmp_path)
    with no_file_above(2000), refused("cannot-write", tmp_path):
        adapt_frames(chosen)
    written = table(tmp_path)
    assert written.endswith(b"\n")
    assert written.count(b"\n") > 8
    assert table(undisturbed).startswith(written)
    adapt_frames(chosen)
    assert table(tmp_path) == table(undisturbed)


def test_a_folder_belongs_to_one_run(network: Path, frames: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("out").mkdir()
    with locked(tmp_path / "out" / ".lock", ""), refused("busy", tmp_path / "out"):
        adapt_frames(request(frames, network, tmp_path / "out", "source"))
    adapt_frames(request(frames, network, tmp_path / "out", "source"))
    with refused("other-run", "method", "'source'", "'tent'"):
        adapt_frames(request(frames, network, tmp_path / "out"))


def test_damaged_folders_are_refused(network: Path, frames: Path, tmp_path: Path) -> None:
    chosen = request(frames, network, tmp_path, "source")
    adapt_frames(chosen)
    (tmp_path / "predictions.csv").write_text("index\n")
    with refused("damaged-folder", tmp_path / "predictions.csv"):
        adapt_frames(chosen)
    (tmp_path / "config.toml").unlink()
    with refused("damaged-folder", tmp_path / "config.toml"):
        adapt_frames(chosen)


def test_broken_pictures_are_counted_in_a_file(network: Path, frames: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "copy", tmp_path / "out"
    shutil.copytree(frames, copy)
    picture = (copy / "day" / "f0.png").read_bytes()
    for name in ("=cmd().png", "a\nb.png", "\x1b[31mred.png", "-1+1.png"):
        (copy / name).write_bytes(picture)
    os.fsencode(copy)
    (Path(os.fsdecode(os.fsencode(copy) + b"/\xff.png"))).write_bytes(picture)
    (copy / "day" / "broken.png").write_bytes(b"broken")
    (copy / "@SUM(1).png").write_bytes(b"")
    chosen = request(copy, network, out, "source", save_every=0.0)
    with pytest.raises(Died):
        adapt_frames(chosen, Stopper(4, die))
    summary = adapt_frames(chosen)
    assert (summary["predictions"], summary["skipped"]) == (65, 2)
    with (out / "skipped.csv").open(newline="") as file:
        skipped = list(csv.DictReader(file))
    assert {row["file"] for row in skipped} == {"'@SUM(1).png", "day/broken.png"}
    names = [row["file"] for row in rows(out)]
    assert len(set(names)) == 65
    assert {"'=cmd().png", "a\\nb.png", "\\x1b[31mred.png", "'-1+1.png", "\\udcff.png"} <= set(names)
    with refused("unreadable-picture"):
        adapt_frames(request(copy, network, tmp_path / "strict", "source", strict=True))


def test_a_folder_without_readable_pictures_is_refused(network: Path, tmp_path: Path) -> None:
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_bytes(b"no picture")
    with refused("no-pictures", 2, tmp_path, "skipped.csv"):
        adapt_frames(request(tmp_path, network, tmp_path / "out", "source"))


def test_the_adapted_model_and_its_state_are_written(network: Path, frames: Path, tmp_path: Path) -> None:
    chosen = request(
        frames, network, tmp_path / "out", "testdg_aligned", settings=SETTINGS,
        save_state=tmp_path / "state", export=tmp_path / "model",
    )  # fmt: skip
    adapt_frames(chosen)
    exported, adapter = load_model(tmp_path / "model"), load_online(tmp_path / "state", str(network))
    images = torch.rand(4, 3, 24, 24)
    torch.testing.assert_close(exported(exported.prepare(images)).logits, adapter.predict(images))
    more = request(frames, network, tmp_path / "more", "testdg_aligned", load_state=tmp_path / "state")
    assert adapt_frames(more)["predictions"] == 60
    with refused("not-exportable", "--export", "tent"):
        adapt_frames(request(frames, network, tmp_path / "tent", export=tmp_path / "no"))


def test_paths_come_from_standard_input(
    network: Path, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Path
) -> None:
    names = [row["file"] for row in rows(undisturbed)]
    monkeypatch.chdir(frames)
    chosen = request("-", network, tmp_path)

    def pipe_in(names: list[str], watcher: Watcher | None = None) -> dict[str, Any]:
        reads, writes = os.pipe()
        os.write(writes, "\n".join(names).encode())
        os.close(writes)
        with os.fdopen(reads) as file:
            monkeypatch.setattr(sys, "stdin", file)
            return adapt_frames(chosen, watcher)

    with pytest.raises(Died):
        pipe_in(names[:40], Stopper(3, die))
    assert pipe_in(names[24:])["predictions"] == 60  # the first 24 do not come again
    assert table(tmp_path) == table(undisturbed)


def test_a_folder_is_followed_until_nothing_comes(network: Path, frames: Path, tmp_path: Path) -> None:
    first = sorted((frames / "day").iterdir())[:10]
    for path in first:
        shutil.copy(path, tmp_path / path.name)
        os.utime(tmp_path / path.name, (1, 1))
    chosen = request(tmp_path, network, tmp_path / "out", "source", follow=True, idle=1.0)
    assert adapt_frames(chosen)["predictions"] == 10
    shutil.copy(frames / "night" / "f40.jpg", tmp_path)
    assert adapt_frames(chosen)["predictions"] == 11


def test_a_segmentation_leaves_maps(tmp_path: Path) -> None:
    model = random_segformer("tiny", ("sky", "road", "car"))
    model.save(tmp_path / "model")
    (tmp_path / "frames" / "a").mkdir(parents=True)
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "frames" / "a" / f"{number}.png")
    out = tmp_path / "out"
    adapt_frames(request(tmp_path / "frames", tmp_path / "model", out, "tent"))
    assert {row["class"] for row in rows(out)} <= {"sky", "road", "car"}
    for folder, shape in (("maps", (64, 96)), ("colours", (64, 96, 3))):
        files = sorted((out / folder).iterdir())
        assert [path.name for path in files] == ["000000-0.png", "000001-1.png", "000002-2.png"]
        assert np.array(Image.open(files[0])).shape == shape
    assert np.array(Image.open(out / "maps" / "000000-0.png")).max() < 3


def test_parquet_holds_the_same_rows(network: Path, frames: Path, tmp_path: Path) -> None:
    chosen = request(frames, network, tmp_path, "source", format="parquet")
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        with refused("not-installed", "testdg[parquet]"):
            adapt_frames(chosen)
        return
    adapt_frames(chosen)
    found = parquet.read_table(tmp_path / "predictions.parquet").to_pylist()
    assert [row["class"] for row in found] == [row["class"] for row in rows(tmp_path)]
    assert all(type(row["confidence"]) is float for row in found)
