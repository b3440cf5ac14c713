from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.errors import refused
from testdg.runs import Result, check_comparable, comparable, differences

PROTOCOL: dict[str, Any] = {
    "kind": "continual", "benchmark": "digits-c", "task": "classification", "data": "generated",
    "data_fingerprint": "abc", "order": "the benchmark's", "domains": ["fog"], "held_out": [], "severity": 5,
    "rounds": 1, "images_per_domain": 3, "sampling": "file", "concentration": "none", "sampling_seed": "none",
    "batch_size": 4, "resets": "once at the start", "model": "vit", "model_fingerprint": "def",
    "preprocessing": {"size": 32}, "precision": "fp32", "device": "cpu", "seed": 0, "tuning": "preset",
}  # fmt: skip


def result(folder: str = "a", **changes: Any) -> Result:
    method = {"name": "tent", "settings": {"learning_rate": 1}}
    return Result({**PROTOCOL, **changes}, method, [], None, 1.0, {}, Path(folder))


@pytest.mark.parametrize("key", ["seed", "tuning", "device", "model", "kind", "order"])
def test_seed_settings_device_and_mere_names_may_differ(key: str) -> None:
    other = replace(result(**{key: "other"}), method={"name": "source", "settings": {}})
    assert comparable(result(), other)
    check_comparable([result(), other])


@pytest.mark.parametrize("key", sorted(PROTOCOL.keys() - {"seed", "tuning", "device", "model", "kind", "order"}))
def test_data_stream_and_model_may_not_differ(key: str) -> None:
    assert differences(result(), result(**{key: "other"})) == {key: (PROTOCOL[key], "other")}
    assert not comparable(result(), result(**{key: "other"}))


def test_all_differing_fields_are_reported_at_once() -> None:
    with refused("not-comparable", "a and b", "rounds is 1 and 3", "batch_size is 4 and 8"):
        check_comparable([result(), result(), result("b", rounds=3, batch_size=8)])


def test_a_field_that_only_one_protocol_has_is_a_difference() -> None:
    assert differences(result(), result(angles=4)) == {"angles": (None, 4)}


def test_fields_can_be_ignored() -> None:
    check_comparable([result(), result(domains=["snow"])], ignore=("domains",))
