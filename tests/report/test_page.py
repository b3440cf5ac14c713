"""The tables of a report: what is compared with what, and every number by hand or by numpy."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.errors import refused
from support.stored_runs import groups_of, rewrite, three_methods, write_run
from testdg.data.corruptions import STANDARD_ORDER
from testdg.report.bench import bench_text
from testdg.report.figures import source_gains
from testdg.report.page import Group, make_report
from testdg.report.published import published, published_tables
from testdg.report.runs import read_runs
from testdg.report.table import Cell, Table, TableColumn
from testdg.runs.scores import Classification, Metric


def texts(sheet: Table) -> list[list[str]]:
    """Every row; the best between stars."""
    return [
        [name, *(f"*{e.text}*" if e.best else e.text + (f" {e.deviation}" if e.deviation else "") for e in entries)]
        for name, entries in sheet.shown()
    ]


def gains_of(group: Group) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in source_gains(group.table, group.sheets[1]).items()}


def titles(sheet: Table) -> list[str]:
    return [f"{column.over} {column.title}".strip() for column in sheet.columns]


def test_methods_are_rows_and_domains_are_columns_with_mean_and_gain_last(tmp_path: Path) -> None:
    (group,) = groups_of(three_methods(tmp_path))
    means, domains, scores = group.sheets
    assert titles(domains) == ["fog", "snow", "mean", "gain"]
    assert texts(domains) == [
        ["Source", "40.0", "20.0", "30.0", ""],
        ["TENT", "32.0 2.8", "22.0 0.0", "27.0 1.4", "+3.0"],
        ["TestDG", "*12.0*", "*18.0*", "*15.0*", "*+15.0*"],
    ]
    assert titles(means) == ["runs", "error, %", "gain", "95 % interval", "seconds"]
    assert texts(means)[1][:3] == ["TENT", "2", "27.00 1.41"]
    assert texts(scores) == [[name, "*0.500*"] for name in ("Source", "TENT", "TestDG")]
    deviation = dict(domains.rows)["TENT"][0].deviation
    assert deviation == pytest.approx(np.std([30, 34], ddof=1))
    assert group.outcome.startswith("TestDG has the lowest mean error, 15.0 ± 1.4 %; Source has 30.0 %, a gain of 15.0")


def test_the_heat_map_shows_how_much_better_than_source(tmp_path: Path) -> None:
    (group,) = groups_of(three_methods(tmp_path))
    assert gains_of(group) == {"TENT": [8.0, -2.0, 3.0], "TestDG": [28.0, 2.0, 15.0]}


def test_rounds_are_side_by_side_and_a_higher_miou_is_better(tmp_path: Path) -> None:
    more: dict[str, Any] = {"task": "segmentation", "kind": "cyclic"}
    write_run(tmp_path / "a", "source", [{"fog": 50.0, "snow": 30.0}, {"fog": 50.0, "snow": 30.0}], **more)
    write_run(tmp_path / "b", "tent", [{"fog": 52.0, "snow": 30.0}, {"fog": 54.0, "snow": 28.0}], **more)
    (group,) = groups_of(tmp_path)
    _, domains, classes = group.sheets
    assert titles(domains) == [f"round {n} {t}" for n in (1, 2) for t in ("fog", "snow", "mean")] + ["mean", "gain"]
    assert domains.overs() == [("round 1", 3), ("round 2", 3), ("", 1), ("", 1)]
    assert texts(domains)[1] == ["TENT", "*52.0*", "*30.0*", "*41.0*", "*54.0*", "28.0", "*41.0*", "*41.0*", "+1.0"]
    assert texts(classes) == [["Source", "40.0", ""], ["TENT", "*41.0*", ""]]
    assert gains_of(group)["TENT"][:2] == [2.0, 0.0]
    assert "highest mean mIoU, 41.0 %" in group.outcome


def test_a_score_where_higher_is_better_has_its_best_marked_and_its_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharpness = Metric("sharpness", "sharpness", unit="dB", higher=True, digits=2, note="how sharp it is")
    monkeypatch.setattr(Classification, "others", (sharpness,))
    for method, value in (("source", 1.0), ("tent", 1.5)):
        folder = write_run(tmp_path / method, method, {"fog": 10.0})
        found = json.loads((folder / "result.json").read_text())
        found["domains"][0]["sharpness"] = value
        rewrite(folder, found)
    (group,) = groups_of(tmp_path)
    scores = group.sheets[2]
    assert (titles(scores), scores.note) == (["sharpness, dB"], "Sharpness: how sharp it is.")
    assert texts(scores) == [["Source", "1.00"], ["TENT", "*1.50*"]]


def test_gains_and_words_follow_the_metric_that_tables_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classification, "metric", Metric("error", "accuracy", higher=True, digits=2))
    (group,) = groups_of(three_methods(tmp_path))
    assert group.outcome == "Source has the highest mean accuracy, 30.00 %."
    assert gains_of(group)["TENT"] == [-8.0, 2.0, -3.0]
    assert texts(group.sheets[1])[1][-1] == "*-3.00*"


def test_many_rounds_have_a_column_each(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "source", [{"fog": float(n), "snow": n + 2.0} for n in range(8)])
    (group,) = groups_of(tmp_path)
    _, domains, _ = group.sheets
    assert titles(domains) == [*(f"round {n}" for n in range(1, 9)), "mean", "gain"]
    assert texts(domains)[0] == ["Source", *(f"{n + 1}.0" for n in range(8)), "4.5", ""]


def test_held_out_domains_have_a_table_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "source", {"fog": 40.0}, held_out={"snow": 30.0, "frost": 10.0}, kind="held-out")
    (group,) = groups_of(tmp_path)
    sheets = {sheet.title: sheet for sheet in group.sheets}
    assert titles(sheets["Domains"]) == ["fog", "mean", "gain"]
    assert texts(sheets["Held-out domains"]) == [["Source", "30.0", "10.0", "20.0", ""]]
    assert "held out, %" in titles(sheets["Means"])


def test_orders_of_one_protocol_are_one_table(tmp_path: Path) -> None:
    for number, (names, error) in enumerate([(["fog", "snow"], 10.0), (["snow", "fog"], 14.0)]):
        order = {"kind": f"order-{number}", "order": f"order {number}"}
        write_run(tmp_path / f"a{number}", "source", dict.fromkeys(names, 20.0 + number), **order)
        write_run(tmp_path / f"b{number}", "tent", dict.fromkeys(names, error), **order)
    (group,) = groups_of(tmp_path)
    assert group.title == "digits-c, orders"
    assert titles(group.sheets[1]) == ["order 0", "order 1", "mean", "gain"]
    assert texts(group.sheets[1])[1] == ["TENT", "*10.0*", "*14.0*", "*12.0*", "+8.5"]
    shutil.rmtree(tmp_path / "b1")  # a row that lacks an order has a gain and no mean
    (group,) = groups_of(tmp_path)
    assert texts(group.sheets[1])[1] == ["TENT", "*10.0*", "", "", "+10.0"]
    assert group.outcome.startswith("Source has a mean error of 20.5")


def test_where_domains_are_left_out_only_their_scores_count(tmp_path: Path) -> None:
    for number, (learnt, left) in enumerate([("fog", "snow"), ("snow", "fog")]):
        more: dict[str, Any] = {"kind": "leave-one-out"}
        write_run(tmp_path / f"a{number}", "source", {learnt: 0.0}, held_out={left: 20.0 + number}, **more)
        write_run(tmp_path / f"b{number}", "tent", {learnt: 90.0}, held_out={left: 10.0 + number}, **more)
    (group,) = groups_of(tmp_path)
    assert titles(group.sheets[1]) == ["fog", "snow", "mean", "gain"]
    assert texts(group.sheets[1])[1] == ["TENT", "*11.0*", "*10.0*", "*10.5*", "+10.0"]
    assert group.outcome.startswith("TENT has the lowest mean error on what is left out, 10.5 %; Source has 20.5 %")
    assert texts(group.sheets[0])[1][5] == "*10.50*"  # no deviation, which would be one between domains
    (chapter,) = make_report([tmp_path]).groups
    assert dict(chapter.record)["runs"].startswith("2 streams")


def test_a_gain_that_rounds_to_zero_has_no_minus(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "source", {"fog": 20.0, "snow": 20.0})
    write_run(tmp_path / "b", "tent", {"fog": 20.001, "snow": 20.0})
    (group,) = groups_of(tmp_path)
    assert texts(group.sheets[0])[1][3:5] == ["+0.00", "+0.00 to +0.00"]
    assert "+0.00  +0.00 to +0.00" in bench_text([group.table])
    assert TableColumn("error").show(-0.01) == "0.0"


def test_results_that_cannot_be_compared_are_in_different_groups(tmp_path: Path) -> None:
    three_methods(tmp_path)
    write_run(tmp_path / "d", "tent", {"fog": 1.0, "snow": 2.0}, batch_size=8)
    write_run(tmp_path / "e", "tent", {"fog": 1.0})
    first, *others = groups_of(tmp_path)
    assert [group.title for group in (first, *others)] == [f"digits-c, continual ({n})" for n in (1, 2, 3)]
    assert sorted(group.apart for group in others) == [
        "Not comparable with digits-c, continual (1): other batch size.",
        "Not comparable with digits-c, continual (1): other domains.",
    ]
    assert [column.title for column in others[0].sheets[1].columns][-1] == "mean"
    assert others[0].outcome.startswith("TENT has a mean error of ")


def test_a_run_that_is_not_complete_is_left_out_and_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "tent", {"fog": 10.0})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.toml").touch()
    assert "1 run not complete and left out" in make_report([tmp_path]).contents


def test_every_folder_without_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "runs" / "a", "tent", {"fog": 10.0})
    with refused("no-runs", tmp_path / "empty", tmp_path / "nowhere", "result.json", "runs.jsonl") as caught:
        read_runs([tmp_path / "empty", tmp_path / "runs", tmp_path / "nowhere"])
    assert str(tmp_path / "runs") + " " not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": "text"},
        {"protocol": {}},
        {"method": {"name": "tent"}},
        {"versions": None},
        {"domains": []},
        {"domains": [{"name": "fog", "error": float("nan"), "images": 4}]},
    ],
)
def test_a_result_whose_parts_do_not_fit_is_left_out_with_the_reason(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "tent", {"fog": 10.0})
    rewrite(folder, {**json.loads((folder / "result.json").read_text()), **changes})
    with refused("damaged-file", tmp_path / "a"):
        read_runs([tmp_path])  # there is no other
    write_run(tmp_path / "b", "source", {"fog": 10.0})
    runs = read_runs([tmp_path])
    assert [result.method["name"] for result in runs.results] == ["source"]
    assert [str(tmp_path / "a") in sentence for sentence in runs.damaged] == [True]
    assert make_report([tmp_path]).contents == "1 run of 1 method in 1 group; 1 run damaged and left out."


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


@pytest.mark.parametrize("strange", [None, 3, -1.5, "text", [], {}, [None], {"a": []}])
def test_a_result_with_a_strange_value_is_used_or_left_out_with_a_reason(strange: Any, tmp_path: Path) -> None:
    more: dict[str, Any] = {"task": "segmentation", "held_out": {"snow": 2.0}}
    folder = write_run(tmp_path / "a", "source", [{"fog": 10.0}, {"fog": 12.0}], **more)
    write_run(tmp_path / "b", "tent", [{"fog": 10.0}, {"fog": 12.0}], **more)
    whole = (folder / "result.json").read_text()
    left_out = 0
    for place in places(json.loads(whole))[1:]:
        holder = found = json.loads(whole)
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = strange
        rewrite(folder, found)
        left_out += len(read_runs([tmp_path]).damaged)
        for group in groups_of(tmp_path):
            assert all([group.sheets, group.outcome, group.record])
    assert left_out > 10


numbers = st.lists(st.floats(0, 100, allow_nan=False) | st.none(), min_size=1, max_size=6)


@given(numbers, st.booleans())
def test_the_best_of_a_column_is_never_worse_than_another(values: list[float | None], higher: bool) -> None:
    sheet = Table("", "", [TableColumn("x", higher)], [(str(n), [Cell(value)]) for n, value in enumerate(values)])
    shown = [entries[0] for _, entries in sheet.shown()]
    known = [value for value in values if value is not None]
    best = [float(entry.text) for entry in shown if entry.best]
    assert bool(best) == (len(known) > 1)
    if best:
        assert set(best) == {round(max(known) if higher else min(known), 1)}


# What papers published


def test_published_means_are_the_means_of_their_rows() -> None:
    for table in published_tables():
        assert all(len(row) == len(table.columns) + 1 for row in table.rows.values())
        if table.columns == STANDARD_ORDER:
            for name, (*row, mean) in table.rows.items():
                assert np.mean(row) == pytest.approx(mean, abs=0.11), (table.benchmark, table.source, name)


def test_published_rounds_are_means_of_their_domains() -> None:
    (table,) = published("acdc", "cyclic")
    for name, row in table.rows.items():
        rounds = np.array(row[:15]).reshape(3, 5)
        assert np.allclose(rounds[:, :4].mean(1), rounds[:, 4], atol=0.2), name
        assert rounds[:, 4].mean() == pytest.approx(row[15], abs=0.11), name


def test_a_published_source_that_cannot_be_right_has_a_remark() -> None:
    checked = []
    for table in (table for table in published_tables() if table.protocol == "held-out"):
        rows = [t.rows["Source"] for t in published(table.benchmark, "continual") if t.columns]
        last_five = round(sum(rows[0][10:15]) / 5, 1)
        checked.append(table.benchmark)
        assert (table.rows["Source"][-1] == last_five) != (f"mean of {last_five} on" in table.remark)
    assert checked == ["cifar10-c", "cifar100-c", "imagenet-c"]
    (left_out,), (cyclic,) = published("acdc", "leave-one-out"), published("acdc", "cyclic")
    assert left_out.rows["Source"][-1] != cyclic.rows["Source"][-1]
    assert f"mean of {cyclic.rows['Source'][-1]} on" in left_out.remark


def test_published_numbers_have_their_own_protocol(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "source", {"fog": 40.0}, benchmark="cifar10-c")
    (group,) = make_report([tmp_path]).groups
    (sheet,) = group.published
    assert "from the paper of TestDG. Protocol: ViT-B/16 at 384 px without normalisation; 15 corruptions" in sheet.note
    assert texts(sheet)[-1][-1] == "*7.7*"
    assert not any("Published" in sheet.title for sheet in group.sheets)
    assert published("digits-c", "continual") == []
