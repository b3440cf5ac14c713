"""Adapt models through random trouble, and count what is lost, damaged or left over; every count must be 0.

    python benchmarks/soak.py                            # five minutes, every method, with and without a guard
    python benchmarks/soak.py --seconds 3600 --seed 1    # an hour of other lives
    python benchmarks/soak.py --methods tent --life 7    # repeat one life of a method

A life is a random sequence of events: other domains, bursts of garbage, predictions without learning, saving, loading,
exporting, a full disk, and a run that is stopped, killed and resumed from its folder. A twin of each adapter sees the
same good batches without trouble: the two must stay equal, bit for bit. For Linux.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from soak_site import ACCEPTED, REFUSED, SCENES, Case, Site, full_disk, leftovers, open_things, resident, source
from torch import Tensor

from testdg.core.online import load_online
from testdg.core.state import read_folder
from testdg.errors import UserError
from testdg.methods import find_method, methods
from testdg.models import load_model
from testdg.runs import run
from testdg.testing import same_state

HAPPENED = ("lives", "steps", "kills", "resumes", "garbage", "saves", "loads", "full disks")
FAILED = ("lost rows", "unequal", "poisoned", "memory", "files", "threads", "errors")
"""Events that were lost or doubled; what goes on otherwise than undisturbed; states that a bad batch changed or that
are not finite; growth of the process, of what is left in folders or open, of threads; exceptions nobody should see."""
ON_STREETS = ("svdp", "tent")
GROWTH = 1.0
"""Megabytes by which the process grows in each of two calm stretches if something of every step is stored."""
GROWTH_OF_LIVES = 16.0
"""Megabytes by which all lives of a case but the first may make the process grow together."""


def cases(names: Sequence[str]) -> list[Case]:
    """Every method with and without a guard; on streets one that is made for them and one that is quick."""
    places = [("digits-c", name) for name in names if "classification" in find_method(name).tasks]
    places += [("streets", name) for name in names if name in ON_STREETS]
    return [Case(*place, guarded) for place in places for guarded in (False, True)]


class Life:
    """One adapter with all its troubles, its twin that has none, and what was counted."""

    def __init__(self, site: Site, case: Case, number: int, seed: int) -> None:
        self.site, self.case, self.number, self.scene = site, case, number, SCENES[case.benchmark]
        self.draw = random.Random(f"{seed} {case} {number}")
        self.count, self.notes = Counter({"lives": 1}), list[str]()
        self.place = Path(tempfile.mkdtemp(prefix="life-", dir=site.place))
        self.adapter, self.twin = (site.adapter(case, probe=number % 2 == 0) for _ in range(2))
        self.empty = {name.split(".")[-1] for name, value in self.twin.tensors().items() if value.isinf().any()}
        self.domain = self.scene.domains[0]

    def live(self, events: Sequence[str] = ()) -> None:
        """Each kind of event at least once, in a drawn order, and then a calm stretch."""
        drawn = [*EVENTS, *self.draw.choices([*EVENTS], k=2)]
        self.draw.shuffle(drawn)
        before = open_things()
        try:
            for event in events or drawn:
                self.walk()
                EVENTS[event](self)
                self.compare("poisoned" if event == "garbage" else "unequal", event)
            self.rest()
        except Exception:
            self.fail("errors", traceback.format_exc())
        for kind, now, then in zip(("files", "threads"), open_things(), before, strict=True):
            self.fail(kind, f"{now - then} more are open", max(0, now - then))
        for path in leftovers(self.place) + leftovers(self.site.place / "cache"):
            self.fail("files", f"{path.relative_to(self.site.place)} is left")
        shutil.rmtree(self.place)

    def fail(self, kind: str, note: str, times: int = 1) -> None:
        """Count something that must not be."""
        self.count[kind] += times
        self.notes += [f"{self.case}, life {self.number}: {kind}: {note}"] * (times > 0)

    def compare(self, kind: str, event: str) -> None:
        """The adapter must be as its twin; after a difference a new twin is made, so that it counts once."""
        if (difference := same_state(self.adapter, self.twin)) is not None:
            self.fail(kind, f"after {event} another {difference[:200]}")
            self.twin = self.site.adapter(self.case, probe=False)
            self.twin.load_state(self.adapter.tensors(), self.adapter.values())

    def batch(self) -> Tensor:
        """Some images of the domain at hand."""
        images = self.site.images[self.case.benchmark][self.domain]
        return images[self.draw.sample(range(len(images)), self.draw.randint(1, self.scene.largest))]

    def step(self, images: Tensor) -> None:
        """Both learn from a batch and must predict the same."""
        logits = self.adapter(images)
        self.count["steps"] += 1
        if not torch.equal(logits, self.twin(images)):
            self.fail("unequal", "the twin predicts something else")
        if not logits.isfinite().all():
            self.fail("poisoned", "a prediction is not finite")

    def walk(self) -> None:
        """Another domain."""
        self.domain = self.draw.choice(self.scene.domains)
        for _ in range(self.draw.randint(1, self.scene.walk)):
            self.step(self.batch())

    # Events

    def garbage(self) -> None:
        """Batches that must be refused, which only the adapter meets, and others that both meet."""
        for _ in range(self.draw.randint(3, 8)):
            self.count["garbage"] += 1
            kind = self.draw.choice([*REFUSED, *ACCEPTED])
            if kind in ACCEPTED:
                self.step(ACCEPTED[kind](self.batch()))
                continue
            try:
                self.draw.choice([self.adapter, self.adapter.predict])(REFUSED[kind](self.batch()))
            except UserError:
                self.compare("poisoned", f"a batch that was refused ({kind})")
            else:
                self.fail("poisoned", f"a batch was not refused ({kind})")

    def freeze(self) -> None:
        """Predict for a while without learning."""
        for _ in range(self.draw.randint(1, 4)):
            images = self.batch()
            if not torch.equal(self.adapter.predict(images), self.twin.predict(images)):
                self.fail("unequal", "the twin predicts something else while it is frozen")

    def save(self) -> Path:
        """Save, and look for what is not finite: only a place that is empty in a new adapter may hold infinity."""
        folder = self.place / "state"
        self.adapter.save(folder)
        self.count["saves"] += 1
        for name, value in read_folder(folder)[0].items():
            if value.isnan().any() or (value.isinf().any() and name.split(".")[-1] not in self.empty):
                self.fail("poisoned", f"saved {name} is not finite")
        return folder

    def load(self) -> None:
        """Go on as what was saved."""
        self.adapter = load_online(self.save(), self.site.models[self.case.benchmark])
        self.count["loads"] += 1

    def export(self) -> None:
        """Write an ordinary checkpoint, which must predict the same; a method that cannot must name the way out."""
        folder, images = self.place / "exported", self.batch()
        try:
            self.adapter.export(folder)
        except UserError as error:
            if error.code != "not-exportable":
                raise
            return
        model = load_model(folder)
        with torch.no_grad():
            gap = (model(model.prepare(images)).logits - self.adapter.predict(images)).abs().max()
        if not gap < 1e-5:
            self.fail("unequal", f"the exported model predicts otherwise by {gap:g}")

    def fill_disk(self) -> None:
        """A state that finds no room must leave the one before it alone."""
        folder = self.save()
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.step(self.batch())
        try:
            with full_disk(self.draw, len(before["state.safetensors"])):
                self.adapter.save(folder)
        except (OSError, SafetensorError, UserError):
            self.count["full disks"] += 1
            if {path.name: path.read_bytes() for path in folder.iterdir()} != before:
                self.fail("unequal", "a save that failed changed the state before it")

    def kill(self) -> None:
        """A run that is frozen, killed and finds no room must end as one that was left alone."""
        options: dict[str, Any] = {"benchmark": self.case.benchmark, "method": self.case.method, "device": "cpu"}
        options |= {"guard": self.case.guarded, "model": str(self.site.place / self.case.benchmark), **self.scene.run}
        options |= {
            "domains": self.draw.sample(self.scene.domains, 3),
            "save_every": self.draw.choice([0, 0, 0.05, 60]),
        }
        out, began = Path(tempfile.mkdtemp(prefix="runs-", dir=self.place)), time.monotonic()
        whole = run(**options, out=out / "whole").folder
        seconds, folder = time.monotonic() - began, out / "stopped" / whole.name
        options["out"] = str(folder.parent)
        for trouble in self.draw.choices([self._kill, self._starve], [3, 1], k=self.draw.randint(1, 3)):
            trouble(options, seconds)
            self.count["resumes"] += folder.exists() and not (folder / "result.json").exists()
        run(**options)
        self.fail("lost rows", "or doubled ones", lost_rows(folder / "events.jsonl", self._rows()))
        for name in differences(whole, folder):
            self.fail("unequal", f"a run that went on has another {name}")

    def _rows(self) -> int:
        return 3 * self.scene.run["images"] // self.scene.run["batch_size"]

    def _kill(self, options: dict[str, Any], seconds: float) -> None:
        step = seconds / self._rows()
        freeze, after = self.draw.uniform(0, step), self.draw.uniform(0, step)
        code = self.site.start(options, self.draw.randrange(self._rows()), freeze, after)
        self.count["kills"] += code < 0
        self.fail("errors", f"a run ended with exit code {code}", int(code > 0))

    def _starve(self, options: dict[str, Any], _: float) -> None:
        try:
            with full_disk(self.draw, int(10 ** self.draw.uniform(2, 6))):
                run(**options)
        except UserError:
            self.count["full disks"] += 1

    def rest(self) -> None:
        """Learn calmly, and look at the memory of the process after it has settled; a single jump is no growth."""
        looks, images = [], [self.batch() for _ in range(self.scene.calm)]
        for _ in range(3):
            for batch in images:
                self.adapter(batch)
            self.count["steps"] += len(images)
            looks.append(resident())
        if min(looks[1] - looks[0], looks[2] - looks[1]) > GROWTH:
            self.fail("memory", f"{', '.join(f'{look:.0f}' for look in looks)} MB, {len(images)} steps each")


EVENTS: dict[str, Callable[[Life], Any]] = {
    "garbage": Life.garbage, "freeze": Life.freeze, "save": Life.save, "load": Life.load, "export": Life.export,
    "full disk": Life.fill_disk, "kill": Life.kill,
}  # fmt: skip


def lost_rows(path: Path, batches: int) -> int:
    """Events that are missing or there more than once."""
    found = Counter(json.loads(line)["batch"] for line in path.read_text().splitlines())
    return sum(abs(found[number] - 1) for number in {*found, *range(batches)})


def differences(one: Path, other: Path) -> list[str]:
    """What two folders of the same run differ in, times aside."""
    whole, again = _parts(one), _parts(other)
    return [name for name in whole if whole[name] != again[name]]


def _parts(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"], result["checksum"]  # of the seconds, too
    tensors = (folder / "state" / "state.safetensors").read_bytes()
    values = json.loads((folder / "state" / "state.json").read_text())["values"]
    return {"result": result, "events": (folder / "events.jsonl").read_bytes(), "tensors": tensors, "values": values}


Rows = dict[Case, Counter[str]]


def soak(site: Site, rows: Rows, seed: int, lives: Iterable[int], seconds: float = math.inf) -> Iterator[str]:
    """Live one life of each case after the other, until the time is over; gives what failed, in words."""
    end, grown = time.monotonic() + seconds, dict[Case, float]()
    for number in lives:
        for case, found in rows.items():
            if time.monotonic() > end:
                return
            before, life = resident(), Life(site, case, number, seed)
            life.live()
            life.adapter = life.twin = None
            grown[case] = grown[case] + resident() - before if case in grown else 0.0
            if grown[case] > GROWTH_OF_LIVES:
                life.fail("memory", f"{grown[case]:.0f} MB more since the first life")
                grown[case] = 0.0
            found.update(life.count)
            yield from life.notes


def table(rows: Rows) -> list[str]:
    """A line a method, lives with and without a guard together."""
    total: dict[str, Counter[str]] = {}
    for case, found in rows.items():
        name = case.method if case.benchmark == "digits-c" else f"{case.method} ({case.benchmark})"
        for key in (name, "all"):
            total.setdefault(key, Counter()).update(found)
    total["all"] = total.pop("all", Counter())
    columns = [*HAPPENED, *FAILED]
    lines = [["method", *columns], *([name, *(str(found[key]) for key in columns)] for name, found in total.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="no life begins later")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=[*methods()])
    parser.add_argument("--life", type=int, help="only this one of each")
    parser.add_argument("--out", type=Path, help="write the counts as JSON, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: Rows = {case: Counter() for case in cases(arguments.methods)}
    lives, notes = count() if arguments.life is None else [arguments.life], []
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    models = {name: source(name) for name in sorted({case.benchmark for case in rows})}
    with (
        tempfile.TemporaryDirectory() as place,
        suppress(KeyboardInterrupt),
        closing(Site(Path(place), models)) as site,
    ):
        for note in soak(site, rows, arguments.seed, lives, arguments.seconds):
            notes.append(note)
            print(note, file=sys.stderr)
    print(*table(rows), sep="\n")
    if arguments.out:
        found = [{**case._asdict(), **{key: row[key] for key in (*HAPPENED, *FAILED)}} for case, row in rows.items()]
        about = {"seed": arguments.seed, "seconds": arguments.seconds, "failures": notes}
        arguments.out.write_text(json.dumps({**about, "rows": found}, indent=1) + "\n")
    return int(any(row[key] for row in rows.values() for key in FAILED))


if __name__ == "__main__":
    sys.exit(main())
