from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from testdg.errors import UserError
from testdg.methods.tent import Tent
from testdg.studies import Grid, RunSpec, expand


def grid(text: str, folder: Path) -> Grid:
    (folder / "grid.toml").write_text(text, encoding="utf-8")
    return Grid.from_toml(folder / "grid.toml")


def told(values: dict[str, Any], *runs: dict[str, Any]) -> str:
    with pytest.raises(UserError) as error:
        expand(Grid(values, runs))
    return str(error.value)


def names(cells: list[RunSpec]) -> list[str]:
    return [str(cell) for cell in cells]


def test_every_combination_is_a_cell_and_source_runs_once_for_each_stream() -> None:
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


def test_source_is_there_though_nobody_names_it_and_can_have_a_name() -> None:
    assert names(expand(Grid({"method": "tent"})))[0] == "Source, digits-c, continual"
    runs = ({"method": "tent"}, {"method": "source", "name": "no adaptation", "seeds": [0, 1]})
    assert [cell.name for cell in expand(Grid({}, runs))] == ["no adaptation", "TENT"]


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
    assert [(cell.name, cell.seed, cell.settings) for cell in plain] == [("TENT", n, (("steps", 2),)) for n in (0, 1)]
    assert (slow.name, slow.seed, slow.batches) == ("TENT, slow", 5, 15 * 6)
    assert slow.settings == (("learning_rate", 1e-5), ("steps", 2))
    assert {cell.options for cell in (source, slow)} == {(("images", 40),)}


def test_values_may_differ_between_benchmarks() -> None:
    values = {"method": "tent", "images": {"digits-c": 30, "cifar10-c": 9}, "batch_size": {"cifar10-c": 5}}
    assert {(cell.options, cell.batch_size) for cell in expand(Grid(values))} == {((("images", 30),), 20)}


def test_options_win_over_all_runs() -> None:
    runs = ({"method": "tent", "images": 50}, {"method": "testdg"})
    cells = expand(Grid({"images": 60}, runs).override({"images": 20, "seeds": [4]}))
    assert {cell.options for cell in cells} == {(("images", 20),)}
    assert {cell.seed for cell in cells if cell.method != "source"} == {4}


def test_an_embedded_benchmark_applies_its_own_preset_and_source_has_none() -> None:
    assert "digits-c" in Tent.presets
    found = {cell.name: cell.preset for cell in expand(Grid({"method": "tent"}))}
    assert found == {"Source": "none", "TENT": "digits-c"}
    source, tent = expand(Grid({"method": "tent", "preset": "imagenet-c"}))
    assert (source.preset, tent.preset) == ("none", "imagenet-c")


def test_all_orders_are_cells_of_one_protocol() -> None:
    cells = expand(Grid({"method": "tent", "protocol": "orders"}))
    assert len(cells) == 20
    assert {cell.asked for cell in cells} == {"orders"}
    assert str(cells[3]) == "TENT, digits-c, orders, order 1, seed 0"


def test_the_same_cell_twice_is_one() -> None:
    assert len(expand(Grid({"method": ["tent", "tent"], "seeds": [1, 1]}))) == 2


def test_all_mistakes_are_told_at_once() -> None:
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
    sentence = told(values, *runs)
    assert sentence.startswith("the grid has 15 mistakes: (1) unknown key 'imagess', did you mean 'images'?; (2) ")
    for part in (
        "severity must be a whole number from 1 to 5; got 'high'",
        "seeds must be a whole number of at least 0 or a list of them; got [0, -1]",
        "settings: unknown method 'tentt'; did you mean 'tent'?",
        "run 4 names no method",
        "run 5: method must be a name or a list of names; got 3",
        "model: unknown benchmark 'digits-e'; did you mean 'digits-c'?",
        "unknown method 'tnet'; did you mean 'tent'?",
        "unknown benchmark 'digits-d'; did you mean 'digits-c'?",
        "cifar10-c needs a data folder with",
        "unknown protocol 'gradul'; did you mean 'gradual'?",
        "TENT: unknown setting 'learning_rat'; did you mean 'learning_rate'?",
        "TENT: steps must be at least 1; got 0",
        "held-out tests on the last 20 domains; the stream has only 15",
        "best: unknown preset of tent 'nope'",
    ):
        assert part in sentence


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        ([{}, {"settings": {"steps": 2}}], "different runs on digits-c, continual are called 'TENT': give each a name"),
        ([{"name": "Source"}], "different runs on digits-c, continual are called 'Source': give each a name"),
        ([{"name": "a"}, {"name": "b"}], "runs 'a' and 'b' on digits-c, continual are the same: leave out one"),
        (
            [{"name": "a", "method": ["tent", "testdg"]}],
            "different runs on digits-c, continual are called 'a': give each a name",
        ),
        ([{"settings": {"seed": 3}}], "TENT: the seed is no setting here: use --seed 3, or seeds = 3 in a grid"),
        ([{"seeds": 2**32}], "TENT: seed must be in [0, 4294967295]; got 4294967296"),
        ([{"device": "gpu"}], "run 1: device must be one of auto, cpu, cuda, mps; got 'gpu'"),
    ],
)
def test_one_mistake_is_one_sentence(runs: list[dict[str, Any]], sentence: str) -> None:
    assert told({"method": "tent"}, *runs) == f"the grid: {sentence}"


def test_streams_that_differ_may_have_rows_of_one_name() -> None:
    cells = expand(Grid({"method": "tent"}, ({}, {"batch_size": 1})))
    assert [(cell.name, cell.batch_size) for cell in cells] == [
        ("Source", 20), ("TENT", 20), ("Source", 1), ("TENT", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("run = 3", "run must be tables, each under [[run]]; got 3"), ("a = ", "is not TOML: Invalid value")],
)
def test_a_file_that_is_no_grid(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        grid(text, tmp_path)
    assert sentence in str(error.value)


def test_a_file_that_does_not_exist() -> None:
    with pytest.raises(UserError, match=r"^grid file none\.toml cannot be read: No such file"):
        Grid.from_toml("none.toml")


def test_a_data_folder_is_not_for_the_embedded_among_several(tmp_path: Path) -> None:
    (tmp_path / "val" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "val" / "cat" / "0.png")
    values = {"method": ["tent"], "benchmark": ["digits-c", "imagenet-c"], "data": str(tmp_path), "images": 1}
    cells = expand(Grid.from_options({**values, "domains": ["fog"]}, []))
    assert {cell.benchmark: cell.data for cell in cells} == {"digits-c": None, "imagenet-c": str(tmp_path)}
    with pytest.raises(UserError, match="digits-c contains its own images: leave out --data"):
        expand(Grid.from_options({**values, "benchmark": ["digits-c"]}, []))


def test_clean_images_are_for_who_measures_them() -> None:
    with pytest.raises(UserError, match=r"source \(--source\) is for methods that measure clean images"):
        expand(Grid.from_options({"method": ["tent", "cotta"], "source": "clean"}, []))
    assert expand(Grid.from_options({"method": ["tent", "align"], "source": "clean"}, []))
    assert expand(Grid.from_options({"method": ["tent"], "source": "clean", "guard": True}, []))
