"""The faults of benchmarks/mutations.toml follow the code: each can still be put in, and its tests are there."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAULTS = tomllib.loads((ROOT / "benchmarks/mutations.toml").read_text(encoding="utf-8"))["fault"]


def test_every_fault_can_be_put_in_and_names_tests_that_exist() -> None:
    for fault in FAULTS:
        code = (ROOT / "src/testdg" / fault["file"]).read_text(encoding="utf-8")
        assert code.count(fault["find"]) == 1, f"{fault['name']}: {fault['file']} has changed"
        assert fault["replace"] != fault["find"]
        for name in fault["tests"]:
            assert (ROOT / "tests" / name.partition("::")[0]).exists(), f"{fault['name']}: {name}"
