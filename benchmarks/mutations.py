"""Put small faults into a copy of this repository, one at a time, and count how many the tests catch.

python benchmarks/mutations.py                        # all sixty: ten minutes
python benchmarks/mutations.py --only sar-one-filter  # one; may be repeated
python benchmarks/mutations.py --list                 # what they are

`mutations.toml` declares the faults. The working tree is never touched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).with_suffix(".toml")
LIMIT = 300
"""Seconds for the tests of one fault; more means that a test hangs."""
ENOUGH = 0.95
PASSED, FAILED = 0, 1
"""What pytest ends with."""


class Fault(NamedTuple):
    """A text of a file of the package, what a mistake makes of it, and the tests that should notice."""

    name: str
    file: str
    find: str
    replace: str
    wrong: str
    tests: tuple[str, ...]


class Outcome(NamedTuple):
    """What became of a fault: caught, caught by time, or survived; and by which test."""

    fault: Fault
    end: str
    by: str
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether a test noticed."""
        return self.end != "survived"


def read_faults(only: Sequence[str] = ()) -> list[Fault]:
    """The declared faults, or some of them by name."""
    tables = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    faults = {table["name"]: Fault(**{**table, "tests": tuple(table["tests"])}) for table in tables}
    if len(faults) < len(tables):
        raise SystemExit(f"{FAULTS.name} has two faults of one name")
    if unknown := [name for name in only if name not in faults]:
        raise SystemExit(f"no fault is called {unknown[0]}: see --list")
    return [fault for fault in faults.values() if not only or fault.name in only]


def misfit(fault: Fault, root: Path) -> str | None:
    """Say why a fault no longer applies to a repository; None where it does."""
    path = root / "src" / "testdg" / fault.file
    count = path.read_text(encoding="utf-8").count(fault.find) if path.exists() else 0
    if count != 1:
        return f"{fault.name} no longer applies: its text is {count} times in {fault.file}"
    missing = [test for test in fault.tests if not (root / "tests" / test).exists()]
    return f"{fault.name}: tests/{missing[0]} does not exist" if missing else None


def copy_repository(place: Path) -> Path:
    """Copy what git tracks, and what is new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    )  # fmt: skip
    home = place / "copy"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # not one that was deleted and is still tracked
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, home / name)
    return home


class Copy:
    """A copy of the repository, in which tests run."""

    def __init__(self, place: Path) -> None:
        self.home, self.scratch = copy_repository(place), place / "scratch"
        # No compiled files: two faults of one length, within a second, would be taken for each other.
        own = {"PYTHONPATH": str(self.home / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **own}
        self._check()

    def _check(self) -> None:
        """Make sure that the copy is what is imported, not what is installed."""
        show = [sys.executable, "-c", "import testdg; print(testdg.__file__)"]
        found = subprocess.run(
            show, cwd=self.home, env=self.environment, capture_output=True, check=True, text=True
        ).stdout.strip()
        if Path(found) != self.home / "src" / "testdg" / "__init__.py":
            raise SystemExit(f"tests would not look at the copy, but at {found}")

    def test(self, files: Sequence[str], limit: float | None = None) -> tuple[int | None, str]:
        """Run some test files until one fails; give the exit code, None where time was up, and the output."""
        alike = ["-p", "no:cacheprovider", "--hypothesis-seed=0", f"--basetemp={self.scratch}"]  # the same every time
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", *alike, *(f"tests/{file}" for file in files)],
            cwd=self.home, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            return _finish(process, limit)
        except BaseException:
            _kill(process)
            raise

    def try_fault(self, fault: Fault) -> Outcome:
        """Put a fault in, run its tests and take it out."""
        path, begun = self.home / "src" / "testdg" / fault.file, time.monotonic()
        right = path.read_text(encoding="utf-8")
        path.write_text(right.replace(fault.find, fault.replace), encoding="utf-8")
        try:
            code, output = self.test(fault.tests, LIMIT)
        finally:
            path.write_text(right, encoding="utf-8")
        if code not in (PASSED, FAILED, None):
            raise SystemExit(f"{output}\n{fault.name}: pytest ended with {code}: the fault is no small one")
        end = {PASSED: "survived", FAILED: "caught", None: "caught by time"}[code]
        return Outcome(fault, end, _failed(output), time.monotonic() - begun)


def _finish(process: subprocess.Popen[str], limit: float | None) -> tuple[int | None, str]:
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        _kill(process)
        return None, process.communicate()[0]


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process with all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _failed(output: str) -> str:
    """The test that failed, without its parameters."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[-1].split(" ")[1].removeprefix("tests/").partition("[")[0] if lines else ""


def try_faults(faults: Sequence[Fault]) -> list[Outcome]:
    """Try faults one after the other, in a copy whose tests pass without any."""
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(place).resolve())
        if wrong := [why for fault in faults if (why := misfit(fault, copy.home))]:
            raise SystemExit("\n".join(wrong))
        files = sorted({file for fault in faults for file in fault.tests})
        print(f"{len(files)} test files without a fault ...", flush=True)
        code, output = copy.test(files)
        if code != PASSED:
            raise SystemExit(f"{output}\nthe tests do not pass without a fault")
        found = []
        for fault in faults:
            found.append(copy.try_fault(fault))
            _, end, by, seconds = found[-1]
            print(f"{fault.name:<38} {end:<15} {seconds:4.0f} s  {by}", flush=True)
        return found


def write(path: Path, found: Sequence[Outcome], rate: float) -> None:
    """Write what became of each fault."""
    rows = [{**one.fault._asdict(), "end": one.end, "by": one.by, "seconds": round(one.seconds, 1)} for one in found]
    path.write_text(json.dumps({"rate": rate, "faults": rows}, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Try the faults and tell how many were caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="a fault; may be repeated")
    parser.add_argument("--list", action="store_true", help="tell what the faults are, and whether they still apply")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write what became of each, as JSON")
    options = parser.parse_args()
    faults = read_faults(options.only)
    if options.list:
        for fault in faults:
            print(f"{fault.name:<38} {misfit(fault, ROOT) or fault.wrong}")
        return int(any(misfit(fault, ROOT) for fault in faults))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has tests ignore it
    found = try_faults(faults)
    survivors = [one.fault for one in found if not one.caught]
    rate = 1 - len(survivors) / len(found)
    if options.out is not None:
        write(options.out, found, rate)
    for fault in survivors:
        print(f"survived: {fault.name} ({fault.file}): {fault.wrong}")
    print(f"{len(found) - len(survivors)} of {len(found)} faults are caught ({rate:.1%})")
    return int(rate < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
