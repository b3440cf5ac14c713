"""Damage run folders in many seeded ways, and count those that give neither the right result nor one sentence.

python benchmarks/damages.py          # 150 damages
python benchmarks/damages.py --long   # 1,000
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from testdg.data.benchmarks import load_benchmark
from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.models import Preprocessing, TinyViT, VisionModel
from testdg.runs import Result, read_result, run
from testdg.runs.folder import RunFolder, load_adapted, read_events

SHORT, LONG = 150, 1000
STOP = 3
"""Batches behind the run that was stopped, of six."""


class Stopped(Exception):
    """The run ends here."""


class Damage(NamedTuple):
    """What was done to which file at which stage of a run."""

    stage: str
    file: str
    kind: str
    detail: str


class Site:
    """A complete run, the same one stopped half way, another one, and a cache with warm-ups: to be copied and hurt."""

    def __init__(self, place: Path) -> None:
        torch.manual_seed(0)
        network = TinyViT(patch=8, width=16, depth=1, heads=2)
        self.model = VisionModel(network, "head", Preprocessing((32, 32)), "random-vit").eval()
        self.benchmark = load_benchmark("digits-c", images=12, domains=["fog", "contrast"])
        self.place = place
        self.use(place / "template")
        self.result = self.run(place / "template" / "complete")
        self.other = self.run(place / "template" / "other", seed=1).folder
        self._stop(place / "template" / "stopped")
        self.events = (self.result.folder / "events.jsonl").read_bytes()

    def use(self, home: Path) -> None:
        """Take caches from a place."""
        os.environ["TESTDG_CACHE"] = str(home / "cache")

    def run(self, out: Path, seed: int = 0) -> Result:
        """Run, or go on, or read back."""
        settings = {"seed": seed, "source_images": 32, "as_released": True}
        options: dict[str, Any] = {"batch_size": 4, "device": "cpu", "save_every": 0.0}
        return run(self.benchmark, "eata", model=self.model, settings=settings, out=out, **options)

    def _stop(self, out: Path) -> None:
        save = RunFolder.save

        def save_and_stop(folder: RunFolder, adapter: Adapter, done: int, seconds: float) -> None:
            save(folder, adapter, done, seconds)
            if done == STOP:
                raise Stopped

        RunFolder.save = save_and_stop  # type: ignore[method-assign]
        try:
            self.run(out)
        except Stopped:
            pass
        finally:
            RunFolder.save = save  # type: ignore[method-assign]

    def copy(self, number: int) -> Path:
        """A fresh copy of everything."""
        home = self.place / f"damage-{number}"
        shutil.copytree(self.place / "template", home)
        self.use(home)
        return home

    def files(self, home: Path, stage: str) -> list[Path]:
        """What can be damaged at a stage."""
        if stage == "fresh":
            return sorted((home / "cache" / "warm-ups").iterdir())
        return sorted(p for p in (home / stage).rglob("*") if p.is_file() and p.name != ".lock")


def flip(path: Path, draw: random.Random, _: Path) -> str:
    """One bit."""
    data = bytearray(path.read_bytes())
    place = draw.randrange(len(data))
    data[place] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    return f"byte {place} of {len(data)}"


def change_digit(path: Path, draw: random.Random, other: Path) -> str:
    """One digit of a text: it stays a text that can be read."""
    data = bytearray(path.read_bytes())
    places = [k for k, value in enumerate(data) if chr(value).isdigit()]
    if not places:
        return flip(path, draw, other)
    place = draw.choice(places)
    data[place] = ord("0") + (data[place] - ord("0") + draw.randrange(1, 10)) % 10
    path.write_bytes(data)
    return f"digit at {place}"


def truncate(path: Path, draw: random.Random, _: Path) -> str:
    """The end is missing."""
    size = path.stat().st_size
    left = draw.randrange(size)
    os.truncate(path, left)
    return f"{left} of {size} bytes"


def truncate_lines(path: Path, draw: random.Random, _: Path) -> str:
    """The last lines are missing."""
    lines = path.read_bytes().splitlines(keepends=True)
    left = draw.randrange(len(lines))
    path.write_bytes(b"".join(lines[:left]))
    return f"{left} of {len(lines)} lines"


def blank(path: Path, draw: random.Random, _: Path) -> str:
    """A block of zeros, as after a power cut."""
    data = bytearray(path.read_bytes())
    start = draw.randrange(len(data))
    end = min(len(data), start + draw.randrange(1, 4096))
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    return f"bytes {start} to {end}"


def delete(path: Path, draw: random.Random, _: Path) -> str:
    """The file is gone; or the folder of a state."""
    if path.parent.name == "state" and draw.random() < 0.5:
        shutil.rmtree(path.parent)
        return "the whole state"
    path.unlink()
    return "the file"


def swap(path: Path, draw: random.Random, other: Path) -> str:
    """The same file of another run, or of another moment of this one; or that one's whole state."""
    if not other.exists():
        return delete(path, draw, other)
    if path.parent.name == "state" and draw.random() < 0.5:
        shutil.rmtree(path.parent)
        shutil.copytree(other.parent, path.parent)
        return f"the state of {other.parents[1].name}"
    shutil.copyfile(other, path)
    return f"{other}"


KINDS: dict[str, Callable[[Path, random.Random, Path], str]] = {
    "flip": flip, "digit": change_digit, "truncate": truncate, "lines": truncate_lines, "blank": blank,
    "delete": delete, "swap": swap,
}  # fmt: skip


def harm(site: Site, home: Path, number: int) -> Damage:
    """Do one damage, which depends on its number alone."""
    draw = random.Random(number)
    stage = draw.choice(["complete", "complete", "stopped", "stopped", "stopped", "fresh"])
    path = draw.choice(site.files(home, stage))
    kind = draw.choice([*KINDS])
    if stage == "fresh":
        others = [file for file in path.parent.iterdir() if file != path]
        other = others[0] if others else path
    else:
        run_folder = home / stage / site.result.folder.name
        places = [home / "other" / site.other.name, *(home / s / run_folder.name for s in ("complete", "stopped"))]
        other = draw.choice([p for p in places if p != run_folder]) / path.relative_to(run_folder)
    detail = KINDS[kind](path, draw, other)
    return Damage(stage, path.name, kind, detail)


def outcome(site: Site, home: Path, stage: str) -> str:
    """What becomes of a damaged run: right, sentence, wrong or traceback."""
    ends = []
    for look in (_go_on, _read, _load):
        try:
            ends.append(look(site, home, stage))
        except UserError as error:
            ends.append("sentence" if str(error) and "\n" not in str(error) else "traceback")
        except Exception:
            traceback.print_exc()
            ends.append("traceback")
    return next((end for end in ("traceback", "wrong", "sentence") if end in ends), "right")


def _go_on(site: Site, home: Path, stage: str) -> str:
    """Start the same command again."""
    stored = (home / stage / site.result.folder.name / "result.json").exists()  # then its seconds are the same, too
    found = site.run(home / stage)
    expected, got = ({**r.to_dict(), "seconds": r.seconds if stored else 0} for r in (site.result, found))
    return "right" if got == expected and (found.folder / "events.jsonl").read_bytes() == site.events else "wrong"


def _read(site: Site, home: Path, stage: str) -> str:
    """Read the result and the events as reports do."""
    if stage == "fresh":
        return "right"
    folder = home / stage / site.result.folder.name
    found = {**read_result(folder).to_dict(), "seconds": 0}
    read_events(folder)
    same = (folder / "events.jsonl").read_bytes() == site.events
    return "right" if same and found == {**site.result.to_dict(), "seconds": 0} else "wrong"


def _load(site: Site, home: Path, stage: str) -> str:
    """Bring the adapted model back."""
    folder = home / stage / site.result.folder.name
    if not (folder / "state").exists():
        return "right"
    found, expected = (load_adapted(place, site.model) for place in (folder, site.result.folder))
    same = all(torch.equal(value, expected.tensors()[name]) for name, value in found.tensors().items())
    return "right" if same else "wrong"


def try_damages(place: Path, count: int) -> list[tuple[Damage, str]]:
    """Damage run folders in so many ways, and tell what became of each."""
    before = os.environ.get("TESTDG_CACHE")
    found = []
    try:
        site = Site(place)
        for number in range(count):
            home = site.copy(number)
            damage = harm(site, home, number)
            found.append((damage, outcome(site, home, damage.stage)))
            shutil.rmtree(home)
    finally:
        os.environ.pop("TESTDG_CACHE", None)
        if before is not None:
            os.environ["TESTDG_CACHE"] = before
    return found


def main() -> None:
    """Count the ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help=f"{LONG} damages instead of {SHORT}")
    count = LONG if parser.parse_args().long else SHORT
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        found = try_damages(Path(place), count)
    for damage, end in found:
        if end in ("wrong", "traceback"):
            print(end, *damage)
    ends = Counter(end for _, end in found)
    print(", ".join(f"{ends[end]} {end}" for end in ("right", "sentence", "wrong", "traceback")))


if __name__ == "__main__":
    main()
