"""What the rows of a report are called: by their bench, or by the settings in which they differ."""

from pathlib import Path

from support.stored_runs import groups_of, write_run
from testdg.methods import find_method
from testdg.report.page import make_report
from testdg.report.runs import read_runs
from testdg.runs import Protocol, read_result
from testdg.spec import RunSpec
from testdg.studies import Complete
from testdg.studies.ablations import find_ablation
from testdg.studies.rows import store_names


def test_rows_of_one_method_are_sorted_by_their_numbers(tmp_path: Path) -> None:
    for rate in (16, 2.5, 128, 1e-05, 3):
        write_run(tmp_path / str(rate), "tent", {"fog": 10.0 + (rate == 16)}, settings={"rate": rate})
    (group,) = groups_of(tmp_path)
    names = [row.name for row in group.table.rows]
    assert names == [f"TENT (rate={rate})" for rate in (1e-05, 2.5, 3, 16, 128)]
    sentence = "Of 5 rows, TENT (rate=1e-05) and 3 others have the lowest mean error, 10.0 %; Source was not run."
    assert group.outcome == sentence


def test_each_folder_of_source_images_has_its_own_row(tmp_path: Path) -> None:
    for name, source in (("own", None), ("mine", "clean"), ("other", "clear")):
        write_run(tmp_path / name, "align", {"fog": 12.0}, source=source, tuning="source images of elsewhere")
    names = [row.name for row in groups_of(tmp_path)[0].table.rows]
    assert names == ["Align (source=clean)", "Align (source=clear)", "Align (source=null)"]


def test_a_missing_setting_has_its_default(tmp_path: Path) -> None:
    old, new = write_run(tmp_path / "old", "tent", {"fog": 10.0}), tmp_path / "new"
    write_run(new, "tent", {"fog": 10.0}, settings={"steps": find_method("tent").Settings().steps})  # type: ignore[attr-defined]
    write_run(tmp_path / "more", "tent", {"fog": 12.0}, seed=1)
    write_run(tmp_path / "other", "tent", {"fog": 14.0}, settings={"steps": 7})
    for folders in ([old, new], [new, old]):
        runs = read_runs(folders)
        assert ([result.folder for result in runs.results], runs.copies) == ([new], 1)
    (group,) = groups_of(tmp_path)
    rows = [(row.name, len(row.results)) for row in group.table.rows]
    assert sorted(rows) == [("TENT (steps=1)", 2), ("TENT (steps=7)", 1)]


def test_rows_of_one_method_are_named_by_the_settings_that_differ(tmp_path: Path) -> None:
    for number, rate in enumerate([0.1, 0.01]):
        settings = {"learning_rate": rate, "steps": 1}
        write_run(tmp_path / f"a{number}", "tent", {"fog": 10.0}, settings=settings)
    write_run(tmp_path / "b", "a_method_of_mine", {"fog": 10.0})
    (group,) = groups_of(tmp_path)
    names = [row.name for row in group.table.rows]
    assert names == ["TENT (learning_rate=0.01)", "TENT (learning_rate=0.1)", "a_method_of_mine"]


def test_where_many_settings_differ_the_unusual_ones_are_named(tmp_path: Path) -> None:
    usual = {"a": 1, "b": 1, "c": 1, "d": 1}
    variants = [usual, {**usual, "a": 2}, {**usual, "b": 2, "c": 2}, {**usual, "d": 2}, dict.fromkeys(usual, 3)]
    for number, settings in enumerate(variants):
        write_run(tmp_path / f"{number}", "tent", {"fog": 10.0}, settings=settings)
    (group,) = groups_of(tmp_path)
    names = ["TENT (usual settings)", "TENT (a=2)", "TENT (b=2, c=2)", "TENT (d=2)", "TENT, settings 5"]
    assert [row.name for row in group.table.rows] == names


def spec(name: str, method: str = "testdg") -> RunSpec:
    return RunSpec(name=name, method=method, protocol="p", stream=Protocol(), batch_size=2, batches=2)


def name_rows(bench: str, rows: dict[str, Path]) -> None:
    """Store the names that a bench gives to the rows of some runs."""
    ends = [Complete(number, read_result(folder)) for number, folder in enumerate(rows.values())]
    store_names(bench, [spec(name) for name in rows], ends)


def names_of(folder: Path) -> list[str]:
    (group,) = groups_of(folder)
    return [row.name for row in group.table.rows]


def test_rows_of_an_ablation_have_its_names_and_order(tmp_path: Path) -> None:
    rows = find_ablation("components").rows
    folders = {
        name: write_run(tmp_path / f"{number}", "testdg", {"fog": 10.0}, settings=settings)
        for number, (name, settings) in enumerate(rows.items())
    }
    name_rows("ablation components", folders)
    assert names_of(tmp_path) == [f"TestDG: {name}" for name in rows]
    sweep = {
        f"threshold {value}": write_run(tmp_path / f"{value}", "testdg", {"fog": 1.0}, settings={"threshold": value})
        for value in (0.02, 0.05, 0.4)
    }
    name_rows("ablation threshold", sweep)
    assert names_of(tmp_path) == [f"TestDG: {name}" for name in (*rows, *sweep)]


def test_a_run_that_two_ablations_share_has_both_names(tmp_path: Path) -> None:
    shared, other = (write_run(tmp_path / n, "testdg", {"fog": 1.0}, settings={"amplifier": n == "a"}) for n in "ab")
    name_rows("ablation components", {"+ update (TestDG)": shared, "without amplifier": other})
    name_rows("ablation amplifier", {"without amplifier": other, "with amplifier": shared})
    assert names_of(tmp_path) == ["TestDG: without amplifier", "TestDG: with amplifier; + update (TestDG)"]


def test_rows_of_one_name_get_their_settings_and_unreadable_names_are_ignored(tmp_path: Path) -> None:
    for rate in (1.0, 2.0):
        folder = write_run(tmp_path / str(rate), "testdg", {"fog": 1.0}, settings={"learning_rate": rate})
        name_rows("ablation amplifier", {"with amplifier": folder})
    name = "TestDG: with amplifier (learning_rate={})"
    assert names_of(tmp_path) == [name.format(rate) for rate in (1.0, 2.0)]
    for folder in tmp_path.iterdir():
        (folder / "rows.json").write_text("[1]")
    assert names_of(tmp_path) == [f"TestDG (learning_rate={rate})" for rate in (1.0, 2.0)]


def test_a_bench_without_row_names_stores_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "testdg", {"fog": 1.0})
    name_rows("the grid", {"TestDG": folder})
    assert not (folder / "rows.json").exists()


def test_seeds_on_two_devices_are_two_rows_and_a_copy_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "tent", {"fog": 10.0})
    write_run(tmp_path / "b", "tent", {"fog": 12.0}, device="cuda")
    write_run(tmp_path / "copy" / "a", "tent", {"fog": 10.0}, tuning="chosen by the user, but the same")
    (group,) = groups_of(tmp_path)
    assert [(row.name, len(row.results)) for row in group.table.rows] == [
        ("TENT (device=cpu)", 1), ("TENT (device=cuda)", 1),
    ]  # fmt: skip
    assert (
        make_report([tmp_path, tmp_path / "a"]).contents
        == "2 runs of 1 method in 1 group; 1 copy of the same run left out."
    )
