import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testdg.errors import UserError
from testdg.report import orders_table, plain_table, result_tables, rich_table, visit_table
from testdg.report.tables import long_table, pivot
from testdg.runs import DomainResult, Result
from testdg.runs.protocol import Visit, make_visits

TWO = make_visits(["fog", "snow"], [], 5, 1)


def result(found: list[DomainResult], held_out: list[DomainResult] | None = None, **protocol: Any) -> Result:
    return Result({"order": "order 0", "task": "classification", **protocol}, {}, found, held_out, 1.0, {}, Path("run"))


def visit(name: str, **scores: float) -> DomainResult:
    return DomainResult(name, 4, scores)


def test_a_plain_table_is_aligned_with_mean_and_gain_last() -> None:
    table = visit_table(["Source", "TENT"], TWO, [{0: 10.0, 1: 20.0}, {0: 8.0, 1: 23.0}])
    assert plain_table(table) == [
        "error, %  Source  TENT  gain",
        "fog         10.0   8.0  +2.0",
        "snow        20.0  23.0  -3.0",
        "mean        15.0  15.5  -0.5",
    ]


SEVERITIES = make_visits(["fog", "snow"], [], "gradual", 1)
GRADUAL = {number: {"fog": 10.0, "snow": 24.0}[visit.name] for number, visit in enumerate(SEVERITIES)}
VISIT_TABLES: dict[str, tuple[list[Visit], list[dict[int, float]], list[list[str]]]] = {
    "incomplete: gaps and no mean": (
        TWO,
        [{0: 10.0, 1: 20.0}, {0: 8.0}],
        [["fog", "10.0", "8.0", "+2.0"], ["snow", "20.0", "", ""], ["mean", "15.0", "", ""]],
    ),
    "held-out domains have their own mean": (
        make_visits(["fog"], ["ice", "rain"], 5, 1),
        [{0: 10.0, 1: 20.0, 2: 30.0}],
        [
            ["fog", "10.0"],
            ["mean", "10.0"],
            ["ice (held out)", "20.0"],
            ["rain (held out)", "30.0"],
            ["mean (held out)", "25.0"],
        ],
    ),
    "gradual: a row per domain, and the mean of all visits": (
        SEVERITIES,
        [GRADUAL, {**GRADUAL, 5: 33.0}],
        [["fog", "10.0", "10.0", "+0.0"], ["snow", "24.0", "25.0", "-1.0"], ["mean", "19.0", "19.6", "-0.6"]],
    ),  # (5 * 10 + 9 * 24) / 14
    "cyclic: a row per round": (
        make_visits(["fog", "snow"], [], 5, 2),
        [{0: 1.0, 1: 3.0, 2: 5.0, 3: 7.0}, {0: 0.0, 1: 2.0, 2: 9.0}],
        [["round 1", "2.0", "1.0", "+1.0"], ["round 2", "6.0", "9.0", ""], ["mean", "4.0", "", ""]],
    ),
}


@pytest.mark.parametrize(("visits", "scores", "expected"), VISIT_TABLES.values(), ids=VISIT_TABLES)
def test_a_table_of_visits(visits: list[Visit], scores: list[dict[int, float]], expected: list[list[str]]) -> None:
    assert visit_table(["Source", "TENT"][: len(scores)], visits, scores).cells() == expected


def test_a_rich_table_shows_the_same_numbers() -> None:
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(rich_table(visit_table(["Source", "TENT"], [Visit("fog", 5, 1, True)], [{0: 10.0}, {0: 8.0}])))
    shown = console.export_text()
    assert all(text in shown for text in ("Source", "TENT", "fog", "10.0", "8.0", "+2.0"))


def test_the_other_scores_have_a_table_of_means() -> None:
    one = result([visit("fog", error=10.0, early_error=20.0, nll=0.5, ece=3.0)])
    two = result([visit("fog", error=8.0, early_error=10.0, nll=0.25, ece=4.0)])
    _, scores = result_tables(["Source", "TENT"], [one, two])
    assert plain_table(scores) == [
        "mean            Source   TENT    gain",
        "early error, %    20.0   10.0   +10.0",
        "NLL              0.500  0.250  +0.250",
        "ECE, %             3.0    4.0    -1.0",
    ]


def test_an_unknown_score_is_empty_and_a_table_without_numbers_is_left_out() -> None:
    lost = result([visit("fog", error=10.0, ece=3.0), visit("snow", error=10.0, nll=0.2, ece=5.0)])
    _, scores = result_tables(["TENT"], [lost])
    assert scores.cells() == [["ECE, %", "4.0"]]
    assert len(result_tables(["TENT"], [result([visit("fog", error=10.0)])])) == 1


def test_held_out_scores_have_their_own_rows() -> None:
    held_out = [visit("snow", error=30.0, nll=2.0)]
    _, scores = result_tables(["TENT"], [result([visit("fog", error=10.0, nll=1.0)], held_out)])
    assert scores.cells() == [["NLL", "1.000"], ["NLL (held out)", "2.000"]]


def test_more_than_ten_rounds_have_no_table_of_their_own() -> None:
    for rounds, tables in ((10, 2), (11, 1)):
        many = [DomainResult("fog", 4, {"error": 1.0}, 5, number) for number in range(1, rounds + 1)]
        assert len(result_tables(["TENT"], [result(many)])) == tables


def maps(*scores: float, held_out: dict[str, float] | None = None, **record: Any) -> Result:
    """The result of a segmentation run with the mIoU of fog and night, in rounds."""
    found = []
    for number, score in enumerate(scores):
        scored = {"error": 10.0, "miou": score}
        name, turn = ["fog", "night"][number % 2], 1 + number // 2
        found.append(DomainResult(name, 4, scored, round=turn, class_iou=[score, None]))
    tested = [DomainResult(name, 4, {"error": 10.0, "miou": score}) for name, score in (held_out or {}).items()]
    about = {"order": "order 0", "task": "segmentation", **record}
    return Result(about, {}, found, tested or None, 1.0, {}, Path("run"), classes=("road", "train"))


def test_higher_is_better_in_every_table_of_a_segmentation_run() -> None:
    tables = result_tables(["Source", "TENT"], [maps(50, 30, 50, 30), maps(52, 31, 54, 29)])
    assert tables[0].header() == ["mIoU, %", "Source", "TENT", "gain"]
    assert tables[0].cells() == [[name, "40.0", "41.5", "+1.5"] for name in ("round 1", "round 2", "mean")]
    assert plain_table(tables[1]) == [
        "TENT, mIoU, %  round 1  round 2",
        "fog               52.0     54.0",
        "night             31.0     29.0",
    ]
    assert tables[2].cells() == [["road", "40.0", "41.5", "+1.5"], ["train", "", "", ""]]


def test_domains_that_are_left_out_in_turn_have_a_row_each() -> None:
    scores = {"fog": (50.0, 53.0), "night": (30.0, 31.0)}
    learnt = {"fog": "night", "night": "fog"}
    runs = [[maps(60, held_out={name: one}, domains=[learnt[name]]) for one in two] for name, two in scores.items()]
    table = orders_table(["Source", "TENT"], runs)
    assert table.corner == "left out, mIoU, %"
    assert table.cells() == [
        ["fog", "50.0", "53.0", "+3.0"], ["night", "30.0", "31.0", "+1.0"], ["mean", "40.0", "42.0", "+2.0"],
    ]  # fmt: skip


def test_results_of_different_protocols_do_not_share_a_table() -> None:
    results = [result([visit("fog", error=10.0)], batch_size=size) for size in (1, 2)]
    with pytest.raises(UserError, match=r"batch_size.*1.*2"):
        result_tables(["a", "b"], results)


def test_orders_are_summarised_by_mean_and_deviation() -> None:
    runs = [
        [
            result([visit("fog", error=error)], [visit("snow", error=50.0)], order=f"order {k}", domains=[k])
            for error in errors
        ]
        for k, errors in enumerate([(10.0, 8.0), (20.0, 12.0)])
    ]
    assert orders_table(["Source", "TENT"], runs).cells() == [
        ["order 0", "10.0", "8.0", "+2.0"],
        ["order 1", "20.0", "12.0", "+8.0"],
        ["mean", "15.0", "10.0", "+5.0"],
        ["deviation", "7.1", "2.8", ""],
        ["order 0 (held out)", "50.0", "50.0", "+0.0"],
        ["order 1 (held out)", "50.0", "50.0", "+0.0"],
        ["mean (held out)", "50.0", "50.0", "+0.0"],
        ["deviation (held out)", "0.0", "0.0", ""],
    ]
    with pytest.raises(UserError, match=r"rounds.*1.*2"):
        orders_table(["Source"], [[result([], rounds=1)], [result([], rounds=2)]])


# The long table


def test_the_long_table_has_a_line_for_each_number_of_each_visit() -> None:
    domains = [visit("fog", error=10.0, nll=0.5), visit("snow", error=20.0)]
    numbers = long_table([("TENT", [result(domains, [visit("ice", error=30.0)], seed=3)])])
    errors = [one for one in numbers if one.metric == "error"]
    found = [(one.name, one.seed, one.domain, one.round, one.held_out, one.value) for one in errors]
    assert found == [
        ("TENT", 3, "fog", 1, False, 10.0), ("TENT", 3, "snow", 1, False, 20.0), ("TENT", 3, "ice", 1, True, 30.0),
    ]  # fmt: skip
    assert [one.value for one in numbers if (one.metric, one.held_out) == ("nll", False)] == [0.5, None]


def test_a_pivot_has_the_values_of_each_run_by_any_fields() -> None:
    runs = [result([visit("fog", error=error), visit("snow", error=2 * error)]) for error in (10.0, 11.0)]
    numbers = [one for one in long_table([("TENT", runs), ("Align", runs[:1])]) if one.metric == "error"]
    assert pivot(numbers, ("name",), ("domain",)) == {
        ("TENT", "fog"): [[10.0], [11.0]], ("TENT", "snow"): [[20.0], [22.0]],
        ("Align", "fog"): [[10.0]], ("Align", "snow"): [[20.0]],
    }  # fmt: skip
    assert pivot(numbers, ("name",), ("round",)) == {
        ("TENT", 1): [[10.0, 20.0], [11.0, 22.0]], ("Align", 1): [[10.0, 20.0]],
    }  # fmt: skip


def test_a_class_that_one_run_lacks_has_no_mean_over_runs() -> None:
    runs = []
    for overlaps in ([40.0, 60.0], [44.0, None], None):
        run = maps(50.0)
        runs.append(replace(run, domains=[replace(run.domains[0], class_iou=overlaps)]))
    assert pivot(long_table([("TENT", runs)]), ("metric",), ())[("IoU of train",)] == [[60.0], [None], [None]]
