"""Settings: a wrong name, type or range is one clear sentence, from Python and from text."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from support.errors import refused
from testdg.core.settings import make_settings
from testdg.methods import Adapter, Settings, adapt, describe_settings, methods, option, typed_settings
from testdg.models import VisionModel


@dataclass(frozen=True, kw_only=True)
class Example(Settings):
    rate: float = option(0.5, "a number", low=0, high=1)
    width: float | None = option(None, "a number or nothing", low=0)
    steps: int = option(1, "a whole number", low=1)
    active: bool = option(True, "a switch")
    kind: Literal["soft", "hard"] = option("soft", "a choice")
    least: float = option(0.0, "a number with an upper end", high=3)


def test_good_values_are_taken() -> None:
    made = make_settings(Example, {"rate": 1, "width": 2, "steps": 3, "active": False, "kind": "hard", "seed": 7})
    assert made == Example(rate=1.0, width=2.0, steps=3, active=False, kind="hard", seed=7)
    assert type(made.rate) is type(make_settings(Example, {"rate": np.float64(0.5)}).rate) is float
    assert make_settings(Example, {"width": None}).width is None
    assert make_settings(Example, {}) == Example()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rat": 0.1}, ("unknown-setting", "'rat'", "'rate'")),
        ({"stesp": 2}, ("unknown-setting", "'stesp'", "'steps'")),
        ({"zzz": 2}, ("unknown-setting", "'zzz'")),
        ({"rate": "fast"}, ("setting-type", "rate", "'fast'")),
        ({"rate": True}, ("setting-type", "rate", "True")),
        ({"rate": None}, ("setting-type", "rate", "None")),
        ({"width": "wide"}, ("setting-type", "width", "'wide'")),
        ({"steps": 2.0}, ("setting-type", "steps", "2.0")),
        ({"steps": True}, ("setting-type", "steps", "True")),
        ({"active": 1}, ("setting-type", "active", "1")),
        ({"active": "yes"}, ("setting-type", "active", "'yes'")),
        ({"kind": "loud"}, ("setting-type", "kind", "'loud'")),
        ({"kind": ["soft"]}, ("setting-type", "kind", "['soft']")),
        ({"precision": "fp16"}, ("setting-type", "precision", "'fp16'")),
        ({"rate": 1.5}, ("setting-range", "rate", "1.5")),
        ({"rate": -0.1}, ("setting-range", "rate", "-0.1")),
        ({"width": -1}, ("setting-range", "width", "-1.0")),
        ({"steps": 0}, ("setting-range", "steps", "0")),
        ({"least": 4}, ("setting-range", "least", "4.0")),
        ({"seed": -1}, ("setting-range", "seed")),
        ({"rate": float("nan")}, ("setting-range", "rate")),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], expected: tuple[str, ...]) -> None:
    with refused(*expected) as caught:
        make_settings(Example, values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rate=1e-3", 1e-3),
        ("rate=1", 1.0),
        ("width=none", None),
        ("width=None", None),
        ("width=2.5", 2.5),
        ("steps=12", 12),
        ("kind=hard", "hard"),
        ("precision=bf16", "bf16"),
        *((f"active={yes}", True) for yes in ("true", "True", "on", "1", "yes", "YES")),
        *((f"active={no}", False) for no in ("false", "False", "off", "0", "no")),
    ],
)
def test_text_is_read_by_the_type_of_the_setting(text: str, value: Any) -> None:
    (found,) = typed_settings(Example, dict([text.split("=", 1)])).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rat=1", ("unknown-setting", "'rat'", "'rate'")),
        ("rate=fast", ("setting-type", "rate", "'fast'")),
        ("rate=none", ("setting-type", "rate", "'none'")),
        ("rate=2", ("setting-range", "rate", "2.0")),
        ("rate=nan", ("setting-range", "rate")),
        ("rate=", ("setting-type", "rate", "''")),
        ("steps=1.5", ("setting-type", "steps", "'1.5'")),
        ("active=maybe", ("setting-type", "active", "'maybe'")),
        ("kind=Soft", ("setting-type", "kind", "'Soft'")),
        ("width=-1", ("setting-range", "width", "-1.0")),
    ],
)
def test_bad_text_is_refused(text: str, expected: tuple[str, ...]) -> None:
    with refused(*expected):
        typed_settings(Example, dict([text.split("=", 1)]))


def test_description_names_type_default_and_help() -> None:
    described = {entry["name"]: entry for entry in describe_settings(Example)}
    assert described["width"] == {
        "name": "width", "type": "a number or none", "default": None, "help": "a number or nothing",
    }  # fmt: skip
    assert described["kind"]["type"] == "soft or hard"
    assert {"seed", "precision"} <= described.keys()


@pytest.mark.parametrize("method", list(methods()))
def test_presets_and_defaults_of_every_method_are_valid(method: str) -> None:
    kind: type[Adapter] = methods()[method]
    defaults = {entry["name"]: entry["default"] for entry in describe_settings(kind.Settings)}
    assert make_settings(kind.Settings, defaults) == kind.Settings()
    assert all(entry["help"] for entry in describe_settings(kind.Settings))
    for name in kind.presets:
        preset = kind.preset(name)
        made = make_settings(kind.Settings, preset)
        assert {key: getattr(made, key) for key in preset} == preset
        texts = {key: str(value) for key, value in preset.items()}
        assert typed_settings(kind.Settings, texts) == preset


def test_keyword_arguments_win_over_a_preset(vit: VisionModel) -> None:
    adapter = adapt(vit, "testdg", preset="cifar100-c", rank=2, learning_rate=0.25)
    made: Any = adapter.settings
    assert made.learning_rate == 0.25
    assert made.threshold == methods()["testdg"].preset("cifar100-c")["threshold"] == 0.16


def test_an_unknown_preset_or_method_names_the_nearest(vit: VisionModel) -> None:
    with refused("unknown-preset", "cifar10", "cifar10-c"):
        adapt(vit, "testdg", preset="cifar10")
    with refused("unknown-method", "testgd", "testdg"):
        adapt(vit, "testgd")
