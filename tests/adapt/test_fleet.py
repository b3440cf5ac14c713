"""Many streams on a real Ray cluster: processes are killed and stopped, and no row is lost, repeated or different."""

import csv
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ray_tools import need_ray
from support.errors import refused
from testdg.methods import find_method
from testdg.models import load_model
from testdg.runs.adapt import Request, adapt_frames
from testdg.runs.session import PictureOptions
from testdg.studies.engine import Failed
from testdg.studies.fleet import Ended, News, SharedModel, Stopped, StreamProgress, adapt_fleet, find_streams
from testdg.studies.ray import Cluster, Lost

CAMERAS = ("gate", "roof", "yard")
PICTURES = 240


@pytest.fixture(scope="module")
def cameras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folders of pictures; do not write here."""
    folder = tmp_path_factory.mktemp("cameras")
    for seed, name in enumerate(CAMERAS):
        (folder / name).mkdir()
        coarse = np.random.default_rng(seed).integers(0, 256, (PICTURES, 5, 5, 3), dtype=np.uint8)
        for number, pixels in enumerate(coarse):
            Image.fromarray(pixels).resize((24, 24)).save(folder / name / f"{number}.png")
    return folder


def request(cameras: Path, network: Path, out: Path, **more: Any) -> Request:
    options = PictureOptions(method="tent", device="cpu")
    return Request(frames=cameras, model=str(network), out=out, options=options, batch_size=8, **more)


@pytest.fixture(scope="module")
def alone(cameras: Path, network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same streams one after the other in this process, as `testdg adapt` runs each."""
    out = tmp_path_factory.mktemp("alone")
    with one_thread():
        for name in CAMERAS:
            adapt_frames(request(cameras / name, network, out / name))
    return out


@contextmanager
def one_thread() -> Iterator[None]:
    """As in the processes of Ray: sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def table(out: Path) -> bytes:
    return (out / "predictions.csv").read_bytes()


def assert_the_same(out: Path, alone: Path) -> None:
    for name in CAMERAS:
        with (out / name / "predictions.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["index"]) for row in rows] == list(range(PICTURES))
        assert [row["file"] for row in rows] == [f"{number}.png" for number in range(PICTURES)]
        assert sum(int(row["learnt"]) for row in rows) > PICTURES / 2
        assert table(out / name) == table(alone / name)


def holders(file: Path) -> Iterator[int]:
    """Processes that have a file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == file:
                yield int(link.parts[2])
        except OSError:
            continue


class Killer(threading.Thread):
    """Kills the process of a stream once it has written some rows and saved a state."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self.out, self.rows = out, 0

    def run(self) -> None:
        while not (found := list(holders(self.out / ".lock"))):
            time.sleep(0.01)
        while not (self.out / "state").exists() or (rows := table(self.out).count(b"\n")) <= 20:
            time.sleep(0.002)
        os.kill(found[0], signal.SIGKILL)
        self.rows = rows


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the process in /proc")
def test_a_killed_process_costs_only_time(
    cluster: Any, cameras: Path, network: Path, alone: Path, tmp_path: Path
) -> None:
    parent = tmp_path / "cameras"
    parent.mkdir()
    (parent / "dark").mkdir()  # a stream without pictures fails; the others do not
    for name in CAMERAS:
        (parent / name).symlink_to(cameras / name)
    out, news = tmp_path / "out", list[News]()
    killer = Killer(out / "roof")
    killer.start()
    ends = adapt_fleet(
        request(parent, network, out, save_every=0.0), address=cluster.address, cpus=0.25, notify=news.append
    )
    assert list(ends) == ["dark", *CAMERAS]
    assert isinstance(ends["dark"], Failed)
    assert "dark" in ends["dark"].sentence
    assert all(isinstance(ends[name], Ended) for name in CAMERAS)
    assert 20 < killer.rows < PICTURES
    assert [one.number for one in news if isinstance(one, Lost)] == [2]
    begun = [(one.number, one.done) for one in news if isinstance(one, StreamProgress) and one.began]
    (first, again) = (done for number, done in begun if number == 2)
    assert first == 0 < again < PICTURES  # from the last state, not from the beginning
    assert sorted(number for number, _ in begun) == [1, 2, 2, 3]
    assert_the_same(out, alone)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_saves_all_streams_that_have_begun(
    cluster: Any, cameras: Path, network: Path, alone: Path, tmp_path: Path
) -> None:
    chosen, begun = request(cameras, network, tmp_path), set[int]()

    def interrupt(news: News) -> None:
        if isinstance(news, StreamProgress) and news.number not in begun:
            begun.add(news.number)
            if len(begun) == 2:
                signal.raise_signal(signal.SIGINT)

    ends = adapt_fleet(chosen, address=cluster.address, cpus=0.4, notify=interrupt)  # room for two of the three
    assert sum(isinstance(end, Stopped) for end in ends.values()) >= 2
    saved = [name for name in CAMERAS if (tmp_path / name / "state").exists()]
    assert len(saved) == 2
    with one_thread():
        for name in CAMERAS:  # each is an ordinary folder, which resumes here, too
            adapt_frames(request(cameras / name, network, tmp_path / name))
    assert_the_same(tmp_path, alone)


@pytest.mark.slow
def test_the_weights_of_the_source_are_in_memory_once(cluster: Any, network: Path) -> None:
    model = load_model(network)
    found = Cluster(cluster.address)
    try:
        place = found.ray.put(SharedModel(model))
        one, two = (found.ray.get(place).model() for _ in range(2))
        for mine, other, own in zip(one.parameters(), two.parameters(), model.parameters(), strict=True):
            assert mine.data_ptr() == other.data_ptr() != own.data_ptr()
            assert mine.requires_grad == own.requires_grad
        assert one.fingerprint() == model.fingerprint()
        find_method("tent")(one).model.get_parameter("network.head.bias").data.add_(1)  # an adapter has its own
        assert two.fingerprint() == model.fingerprint()
    finally:
        found.close()


@pytest.mark.slow
def test_endless_streams_must_all_have_room(cluster: Any, cameras: Path, network: Path, tmp_path: Path) -> None:
    followed = request(cameras, network, tmp_path, follow=True)
    with refused("too-few-machines", "3 streams", "room for 1", "--cpus 0.33"):
        adapt_fleet(followed, address=cluster.address)
    with refused("too-few-machines", "2 cores"):
        adapt_fleet(followed, address=cluster.address, cpus=2)
    with refused("too-few-machines", "0.1 GPUs", "--gpus"):
        adapt_fleet(followed, address=cluster.address, gpus=0.1)


def test_tied_weights_stay_tied(network: Path) -> None:
    model = load_model(network)
    head = model.head_layer
    model.network.second = torch.nn.Linear(1, 1)
    model.network.second.weight = head.weight
    found = SharedModel(model).model()
    assert found.network.second.weight is found.head_layer.weight
    assert found.head_layer.weight is not head.weight
    assert found.head_layer.weight.data_ptr() == head.weight.data_ptr()


def test_streams_are_the_subfolders_in_order(network: Path, tmp_path: Path) -> None:
    for name in ("cam10", "cam2", ".hidden", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "loose.png").touch()
    found = find_streams(request(tmp_path, network, tmp_path / "out", export=tmp_path / "models"))
    assert list(found) == ["cam2", "cam10"]
    assert found["cam2"].out == tmp_path / "out" / "cam2"
    assert found["cam2"].export == tmp_path / "models" / "cam2"


@pytest.mark.parametrize(("name", "share"), [("gpus", 1.5), ("gpus", -0.1), ("cpus", 0.0), ("cpus", float("nan"))])
def test_shares_are_checked_first(name: str, share: float, network: Path, tmp_path: Path) -> None:
    shares: dict[str, Any] = {name: share}
    with refused("wrong-value", f"--{name}", f"{share:g}"):
        adapt_fleet(request(tmp_path, network, tmp_path / "out"), address="nowhere:1", **shares)


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        (PictureOptions(method="testdg_aligned", source=Path("nowhere")), "no-source-folder", "nowhere"),
        (PictureOptions(method="tent", device="gpu"), "unknown-device", "'gpu'"),
    ],
)
def test_mistakes_of_all_streams_are_reported_once(
    options: PictureOptions, code: str, value: str, cameras: Path, network: Path, tmp_path: Path
) -> None:
    need_ray()
    with refused(code, value):
        adapt_fleet(Request(frames=cameras, model=str(network), out=tmp_path, options=options), address="nowhere:1")
