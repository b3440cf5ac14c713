"""Runs through many disturbances leave nothing behind, and the counters that show it can fail."""

import json
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from support.scripts import FOLDER, load_script
from testdg.methods import Adapter
from testdg.methods.tent import Tent
from testdg.models import Preprocessing, TinyViT, VisionModel
from testdg.runs import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at the process in /proc")


@pytest.fixture(scope="module")
def soak() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield load_script("soak")


@pytest.fixture(scope="module")
def site(soak: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    torch.manual_seed(0)
    network = TinyViT(patch=8, width=16, depth=2, heads=2)
    model = VisionModel(network, "head", Preprocessing((32, 32)), "random-vit").eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as in the other process: sums depend on it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTDG_CACHE", "")
        with closing(soak.Site(tmp_path_factory.mktemp("site"), {"digits-c": model})) as site:
            yield site
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_lives_leave_nothing_behind(soak: ModuleType, site: Any) -> None:
    chosen = [("tent", False), ("tent", True), ("ecotta", True), ("t3a", False)]
    rows: dict[Any, Counter[str]] = {soak.Case("digits-c", *case): Counter() for case in chosen}
    assert list(soak.soak(site, rows, seed=0, lives=[0])) == []
    total = sum(rows.values(), Counter())
    assert all(total[key] for key in soak.HAPPENED)
    assert not any(total[key] for key in soak.FAILED)
    *lines, last = soak.table(rows)
    assert [line.split()[0] for line in lines] == ["method", "tent", "ecotta", "t3a"]
    assert last.split()[-len(soak.FAILED) :] == ["0"] * len(soak.FAILED)


# Counters that can fail

kept: list[Callable[[], object]] = []
"""What faults have allocated; a call frees it."""


def leak(adapter: Tent, images: Tensor) -> None:
    """Change a weight before the batch is checked."""
    with torch.no_grad():
        next(iter(adapter.trainable().values())).add_(1e-3)


def keep(adapter: Tent, images: Tensor) -> None:
    """Leak memory at every batch."""
    kept.append(torch.ones(100_000).size)


def spin(adapter: Tent, images: Tensor) -> None:
    """Start a thread that does not end."""
    event = threading.Event()
    thread = threading.Thread(target=event.wait, daemon=True)
    thread.start()
    kept.extend([thread.join, event.set])


def leave_open(adapter: Tent, images: Tensor) -> None:
    """Open a file and do not close it."""
    kept.append((FOLDER / "soak.py").open().close)


def remember(adapter: Tent, images: Tensor) -> None:
    """Learn differently at every third batch of this object."""
    born = adapter.__dict__.setdefault("born", adapter.batches)
    if (adapter.batches - born) % 3 == 2:
        leak(adapter, images)


def stumble(adapter: Tent, images: Tensor) -> None:
    """Raise an unexpected error."""
    if adapter.batches == 5:
        raise RuntimeError("a mistake")


@pytest.mark.parametrize(
    ("fault", "counter", "event"),
    [
        (leak, "poisoned", "garbage"),
        (keep, "memory", "freeze"),
        (spin, "threads", "freeze"),
        (leave_open, "files", "freeze"),
        (remember, "unequal", "load"),
        (stumble, "errors", "freeze"),
    ],
)
def test_a_fault_is_counted(
    soak: ModuleType, site: Any, monkeypatch: pytest.MonkeyPatch, fault: Any, counter: str, event: str
) -> None:
    plain = Tent.forward

    def forward(adapter: Tent, images: Tensor) -> Tensor:
        fault(adapter, images)
        return plain(adapter, images)

    monkeypatch.setattr(Tent, "forward", forward)
    life = soak.Life(site, soak.Case("digits-c", "tent", False), 0, 0)
    try:
        life.live([event] * 4)
    finally:
        while kept:
            kept.pop()()
    assert {key for key in soak.FAILED if life.count[key]} == {counter}
    assert all(note.startswith(f"tent on digits-c, life 0: {counter}: ") for note in life.notes)


def test_half_a_state_that_is_left_is_counted(soak: ModuleType, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Adapter.save

    def save(adapter: Adapter, folder: Path, note: Any = None) -> None:
        folder.with_name("state.new").mkdir(exist_ok=True)
        plain(adapter, folder.with_name("state"), note)
        folder.with_name("state.new").mkdir()

    monkeypatch.setattr(Adapter, "save", save)
    life = soak.Life(site, soak.Case("digits-c", "tent", False), 0, 0)
    life.live(["save"])
    assert life.count["files"] == 1
    assert life.notes[0].endswith("state.new is left")


def test_a_state_that_is_not_finite_is_counted(soak: ModuleType, site: Any) -> None:
    life = soak.Life(site, soak.Case("digits-c", "t3a", False), 0, 0)
    assert life.adapter.tensors()["entropies"].isinf().any()  # empty places
    life.save()
    assert life.count["poisoned"] == 0
    with torch.no_grad():
        next(life.adapter.parameters()).view(-1)[0] = float("nan")
    life.save()
    assert life.count["poisoned"] == 1


def test_rows_and_differences_of_runs_are_counted(soak: ModuleType, site: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"images": 8, "domains": ["fog", "contrast"], "batch_size": 4, "device": "cpu"}
    whole = run("digits-c", "tent", model=site.models["digits-c"], out=tmp_path, **options).folder
    again = tmp_path / "again"
    shutil.copytree(whole, again)
    events = again / "events.jsonl"
    assert (soak.lost_rows(events, 4), soak.differences(whole, again)) == (0, [])
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join([*lines, lines[1]]))
    assert (soak.lost_rows(events, 4), soak.differences(whole, again)) == (1, ["events"])
    events.write_text("".join([*lines[:1], *lines[2:]]))
    assert soak.lost_rows(events, 4) == 1
    values = json.loads((again / "result.json").read_text())
    (again / "result.json").write_text(json.dumps({**values, "skipped": 7}))
    assert soak.differences(whole, again) == ["result", "events"]
