from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from support.errors import refused
from testdg.methods.tent import Tent
from testdg.studies import Grid, RunSpec, expand


def grid(text: str, folder: Path) -> Grid:
    (folder / "grid.toml").write_text(text, encoding="utf-8")
    return Grid.from_toml(folder / "grid.toml")


def names(specs: list[RunSpec]) -> list[str]:
    return [str(spec) for spec in specs]


def test_every_combination_is_a_run_and_source_runs_once_for_each_stream() -> None:
    lists = {"method": ["source", "tent", "testdg"], "protocol": ["continual", "cyclic,rounds=2"], "seeds": [0, 3]}
    assert names(expand(Grid(lists))) == [
        f"{row}"
        for protocol in ("continual", "cyclic,rounds=2")
        for row in (
            f"Source, digits-c, {protocol}",
            f"TENT, digits-c, {protocol}, seed 0",
            f"TENT, digits-c, {protocol}, seed 3",
            f"TestDG, digits-c, {protocol}, seed 0",
            f"TestDG, digits-c, {protocol}, seed 3",
        )
    ]


def test_source_is_always_run_and_can_have_a_name() -> None:
    assert names(expand(Grid({"method": "tent"})))[0] == "Source, digits-c, continual"
    runs = ({"method": "tent"}, {"method": "source", "name": "no adaptation", "seeds": [0, 1]})
    assert [spec.name for spec in expand(Grid({}, runs))] == ["no adaptation", "TENT"]


def test_a_run_changes_the_values_of_all_runs(tmp_path: Path) -> None:
    text = """
    benchmark = "digits-c"
    method = "tent"
    seeds = [0, 1]
    images = 40
    [settings.tent]
    steps = 2
    [[run]]
    [[run]]
    name = "TENT, slow"
    seeds = 5
    batch_size = 7
    settings = { learning_rate = "1e-5", precision = "bf16" }
    """
    source, *plain, slow_source, slow = expand(grid(text, tmp_path))
    assert (source.batch_size, slow_source.batch_size, slow_source.precision) == (20, 7, "bf16")
    assert [(spec.name, spec.seed, spec.settings) for spec in plain] == [("TENT", n, {"steps": 2}) for n in (0, 1)]
    assert (slow.name, slow.seed, slow.batches) == ("TENT, slow", 5, 15 * 6)
    assert slow.settings == {"learning_rate": 1e-5, "steps": 2}
    assert [spec.options for spec in (source, slow)] == [{"images": 40}] * 2


def test_values_may_differ_between_benchmarks() -> None:
    values = {"method": "tent", "images": {"digits-c": 30, "cifar10-c": 9}, "batch_size": {"cifar10-c": 5}}
    assert [(spec.options, spec.batch_size) for spec in expand(Grid(values))] == [({"images": 30}, 20)] * 2


def test_options_override_all_runs() -> None:
    runs = ({"method": "tent", "images": 50}, {"method": "testdg"})
    specs = expand(Grid({"images": 60}, runs).override({"images": 20, "seeds": [4]}))
    assert [spec.options for spec in specs] == [{"images": 20}] * len(specs)
    assert {spec.seed for spec in specs if spec.method != "source"} == {4}


def test_an_embedded_benchmark_applies_its_own_preset_and_source_has_none() -> None:
    assert "digits-c" in Tent.presets
    found = {spec.name: spec.preset for spec in expand(Grid({"method": "tent"}))}
    assert found == {"Source": "none", "TENT": "digits-c"}
    source, tent = expand(Grid({"method": "tent", "preset": "imagenet-c"}))
    assert (source.preset, tent.preset) == ("none", "imagenet-c")


def test_all_orders_are_runs_of_one_protocol() -> None:
    specs = expand(Grid({"method": "tent", "protocol": "orders"}))
    assert len(specs) == 20
    assert {spec.protocol for spec in specs} == {"orders"}
    assert str(specs[3]) == "TENT, digits-c, orders, order 1, seed 0"


def test_the_same_run_twice_is_one() -> None:
    assert len(expand(Grid({"method": ["tent", "tent"], "seeds": [1, 1]}))) == 2


def test_all_mistakes_are_reported_at_once() -> None:
    values = {
        "benchmark": ["digits-c", "digits-d", "cifar10-c"],
        "imagess": 3,
        "severity": "high",
        "seeds": [0, -1],
        "settings": {"tentt": {}},
        "model": {"digits-e": "x"},
    }
    runs = (
        {"method": "tnet"},
        {"method": "tent", "settings": {"learning_rat": 1, "steps": 0}, "protocol": ["gradul", "held-out,held_out=20"]},
        {"method": "tent", "name": "best", "preset": "nope"},
        {"protocol": "continual"},
        {"method": 3},
    )
    mistakes = (
        "'imagess', did you mean 'images'", "severity must be a whole number from 1 to 5; got 'high'", "got -1",
        "'tentt'; did you mean 'tent'", "run 4", "run 5: method must be a name; got 3", "'digits-e'",
        "'tnet'; did you mean 'tent'", "'digits-d'; did you mean 'digits-c'", "cifar10-c needs a data folder",
        "'gradul'; did you mean 'gradual'", "TENT: unknown setting 'learning_rat'", "TENT: steps must be at least 1",
        "held-out tests on the last 20 domains; the stream has only 15", "best: unknown preset of tent 'nope'",
    )  # fmt: skip
    with refused("unknown-key", "the grid has 15 mistakes", *mistakes):
        expand(Grid(values, runs))


@pytest.mark.parametrize(
    ("runs", "code", "values"),
    [
        ([{}, {"settings": {"steps": 2}}], "same-name", ("digits-c, continual", "'TENT'")),
        ([{"name": "Source"}], "same-name", ("digits-c, continual", "'Source'")),
        ([{"name": "a", "method": ["tent", "testdg"]}], "same-name", ("digits-c, continual", "'a'")),
        ([{"name": "a"}, {"name": "b"}], "same-run", ("'a'", "'b'", "digits-c, continual")),
        ([{"settings": {"seed": 3}}], "setting-syntax", ("TENT", "--seed 3", "seeds = 3")),
        ([{"seeds": 2**32}], "wrong-value", ("run 1", "seeds", 2**32 - 1, 2**32)),
        ([{"device": "gpu"}], "wrong-value", ("run 1", "device", "auto, cpu, cuda or mps", "'gpu'")),
    ],
)
def test_one_mistake_is_reported_alone(runs: list[dict[str, Any]], code: str, values: tuple[Any, ...]) -> None:
    with refused(code, *values) as caught:
        expand(Grid({"method": "tent"}, runs))
    assert "mistakes" not in str(caught.value)


def test_streams_that_differ_may_have_rows_of_one_name() -> None:
    specs = expand(Grid({"method": "tent"}, ({}, {"batch_size": 1})))
    assert [(spec.name, spec.batch_size) for spec in specs] == [
        ("Source", 20), ("TENT", 20), ("Source", 1), ("TENT", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "value"), [("run = 3", "wrong-grid", "3"), ("a = ", "damaged-file", "TOML")])
def test_a_file_that_is_not_a_grid_is_refused(text: str, code: str, value: str, tmp_path: Path) -> None:
    with refused(code, tmp_path / "grid.toml", value):
        grid(text, tmp_path)


def test_a_file_that_does_not_exist_is_refused() -> None:
    with refused("unreadable-file", "none.toml"):
        Grid.from_toml("none.toml")


def test_a_data_folder_of_several_benchmarks_is_not_that_of_an_embedded_one(tmp_path: Path) -> None:
    (tmp_path / "val" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "val" / "cat" / "0.png")
    values = {"method": ["tent"], "benchmark": ["digits-c", "imagenet-c"], "data": str(tmp_path), "images": 1}
    specs = expand(Grid({**values, "domains": ["fog"]}))
    assert {spec.benchmark: spec.data for spec in specs} == {"digits-c": None, "imagenet-c": str(tmp_path)}
    with refused("option-conflict", "digits-c", "--data"):
        expand(Grid({**values, "benchmark": ["digits-c"]}))


def test_source_images_are_for_methods_that_learn_from_them_and_guards() -> None:
    with refused("option-conflict", "--source"):
        expand(Grid({"method": ["tent", "cotta"], "source": "clean"}))
    assert expand(Grid({"method": ["tent", "align"], "source": "clean"}))
    assert expand(Grid({"method": ["tent"], "source": "clean", "guard": True}))
