"""The examples in docstrings run and print what they say; scores may lie a few points away, by weights and machine."""

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from testdg.methods import methods

NEAR = 5.0
"""Points that a score may differ by: ten of the 200 images; training ends in other weights on other machines."""
PACKAGES = ("testdg", "testdg.methods", "testdg.models", "testdg.data.benchmarks", "testdg.core.guard", "testdg.runs")
PACKAGES += ("testdg.runs", "testdg.studies", "testdg.testing", "testdg.runs.training.fine_tune")
NUMBER = r"-?\d+\.\d+"


class Near(doctest.OutputChecker):
    """The words must be the same; numbers with a point may lie near each other."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if super().check_output(want, got, optionflags):
            return True
        words = [re.sub(NUMBER, "#", text) for text in (want, got)]
        pairs = zip(re.findall(NUMBER, want), re.findall(NUMBER, got), strict=False)
        return words[0] == words[1] and all(abs(float(one) - float(other)) <= NEAR for one, other in pairs)


def public() -> dict[str, Any]:
    """Everything public whose docstring has an example, by where it is imported from."""
    found: dict[str, Any] = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in getattr(package, "__all__", vars(package)):
            thing = getattr(package, name)
            if ">>>" in (getattr(thing, "__doc__", None) or "") and thing not in found.values():
                found[f"{package.__name__}.{name}"] = thing
    return found


def run_example(name: str, thing: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (test,) = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    printed: list[str] = []
    runner = doctest.DocTestRunner(Near(), optionflags=doctest.ELLIPSIS)
    assert test.examples, f"{name} shows no example"
    assert runner.run(test, out=printed.append).failed == 0, "".join(printed)


@pytest.mark.parametrize("name", methods())
def test_every_method_shows_an_example_that_runs(
    name: str, shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_example(name, methods()[name], tmp_path, monkeypatch)


@pytest.mark.parametrize("name", public())
def test_public_functions_show_examples_that_run(
    name: str, shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_example(name, public()[name], tmp_path, monkeypatch)


def test_a_score_that_is_far_away_is_a_failure() -> None:
    near = Near()
    assert near.check_output("error 20.0 %\n", "error 24.9 %\n", 0)
    assert not near.check_output("error 20.0 %\n", "error 25.1 %\n", 0)
    assert not near.check_output("error 20.0 %\n", "mIoU 20.0 %\n", 0)
