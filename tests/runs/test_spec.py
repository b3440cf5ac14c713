"""RunSpec: one declaration, from which options, grids, checks and records follow."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from support.errors import refused
from testdg import spec as specs
from testdg.cli.app import app
from testdg.runs import Protocol, run
from testdg.runs.compare import differences
from testdg.schema import check_value, field_types, rule_of
from testdg.spec import CHOICES, RunSpec, chosen
from testdg.studies import Grid, expand

EXAMPLES: dict[str, Any] = {
    "benchmark": "digits-c", "method": "tent", "protocol": "continual", "seed": 3, "model": "vit", "data": "data",
    "preset": "none", "tuned": "tuned.toml", "source": "clean", "guard": True, "device": "cpu", "batch_size": 4,
    "precision": "bf16", "images": 8, "severity": 2, "domains": ("fog",), "subset": "first:2", "skip_unreadable": True,
    "preprocessing": "paper", "corruption_seed": 1, "workers": 2, "save_every": 5.0,
}  # fmt: skip


def test_every_choice_has_an_option_a_grid_key_and_a_checked_type() -> None:
    assert EXAMPLES.keys() == CHOICES.keys()
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for name, choice in CHOICES.items():
        assert choice.option in shown
        assert choice.help
        assert check_value(choice.type, name, EXAMPLES[name]) == EXAMPLES[name]
        with refused("wrong-value", choice.key):
            check_value(choice.type, choice.key, {"a": "table"})


def test_a_spec_is_a_value() -> None:
    one = RunSpec(**EXAMPLES, settings={"learning_rate": 1e-4}, stream=Protocol())
    assert pickle.loads(pickle.dumps(one)) == one
    assert {one: 1}[replace(one, seed=3)] == 1
    assert replace(one, settings={"learning_rate": 1e-3}) != one
    assert one.setup == replace(one, method="eata", seed=0, guard=False, settings={}).setup
    assert one.setup != replace(one, images=9).setup


@given(st.integers(-5, 9))
def test_bounds_are_those_of_the_declaration(value: int) -> None:
    declared = field_types(RunSpec)["severity"]
    if 1 <= value <= 5:
        assert check_value(declared, "severity", value) == value
    else:
        with refused("wrong-value", "severity", "1", "5", value):
            check_value(declared, "severity", value)


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_a_blank_is_not_a_name(blank: str) -> None:
    with refused("wrong-value", "model"):
        check_value(field_types(RunSpec)["model"], "model", blank)


def test_rules_are_read_from_types() -> None:
    rules = {name: rule_of(choice.type) for name, choice in CHOICES.items()}
    assert rules["severity"] == "a whole number from 1 to 5"
    assert rules["images"] == "a whole number of at least 1"
    assert rules["device"] == "auto, cpu, cuda or mps"
    assert rules["domains"] == "a list of names"


def test_options_between_commas_become_lists() -> None:
    given_options = {"method": "tent, eata", "seed": "0,1,x", "protocol": "cyclic,rounds=5,continual", "guard": False}
    assert chosen({**given_options, "model": "a,b", "images": None}) == {
        "method": ["tent", "eata"],
        "seed": [0, 1, "x"],
        "protocol": ["cyclic,rounds=5", "continual"],
        "model": "a,b",
    }


def test_a_grid_knows_the_keys_of_the_declaration() -> None:
    values = {choice.key: EXAMPLES[name] for name, choice in CHOICES.items() if name in ("method", "seed", "images")}
    source, tent = expand(Grid({**values, "domains": ["fog"], "guard": {"digits-c": True}}))
    assert (source.method, source.guard, tent.method, tent.seed, tent.guard) == ("source", False, "tent", 3, True)
    with refused("unknown-key", "imagess", "images"):
        expand(Grid({"method": "tent", "imagess": 3}))


def test_what_numbers_depend_on_can_be_recorded_by_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"images": 8, "domains": ["fog"], "out": tmp_path}
    plain = run("digits-c", "source", **small)
    monkeypatch.setitem(specs.CHOICES, "save_every", CHOICES["save_every"]._replace(recorded=True))
    assert run("digits-c", "source", **small).folder == plain.folder  # a default changes nothing
    other = run("digits-c", "source", save_every=1.0, **small)
    assert other.record["save_every"] == 1.0
    assert other.folder != plain.folder
    assert differences(plain, other) == {"save_every": (None, 1.0)}
