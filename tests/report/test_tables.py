import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testdg.errors import UserError
from testdg.report import Table, orders_table, plain_table, result_tables, rich_table, visit_table
from testdg.report.tables import long_table, pivot
from testdg.runs import DomainResult, Result
from testdg.runs.protocol import Visit, make_visits
from testdg.runs.scores import Classification, Metric

TWO = make_visits(["fog", "snow"], [], 5, 1)


def cells(table: Table) -> list[list[str]]:
    return table.cells()


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


def test_a_gain_that_rounds_to_zero_has_no_minus() -> None:
    table = visit_table(["Source", "TENT"], TWO, [{0: 10.0, 1: 20.0}, {0: 10.01, 1: 20.0}])
    assert [row[-1] for row in cells(table)] == ["+0.0", "+0.0", "+0.0"]


def test_an_incomplete_table_has_gaps_and_no_mean() -> None:
    table = visit_table(["Source", "TENT"], TWO, [{0: 10.0, 1: 20.0}, {0: 8.0}])
    assert cells(table) == [["fog", "10.0", "8.0", "+2.0"], ["snow", "20.0", "", ""], ["mean", "15.0", "", ""]]


def test_held_out_domains_have_their_own_mean() -> None:
    visits = make_visits(["fog"], ["snow", "frost"], 5, 1)
    table = visit_table(["Source"], visits, [{0: 10.0, 1: 20.0, 2: 30.0}])
    assert cells(table)[1:] == [
        ["mean", "10.0"], ["snow (held out)", "20.0"], ["frost (held out)", "30.0"], ["mean (held out)", "25.0"],
    ]  # fmt: skip


def test_a_gradual_table_has_a_row_per_domain_and_the_mean_of_all_visits() -> None:
    visits = make_visits(["fog", "snow"], [], "gradual", 1)
    errors = {number: 10.0 if visit.name == "fog" else 24.0 for number, visit in enumerate(visits)}
    assert cells(visit_table(["Source"], visits, [errors])) == [
        ["fog", "10.0"], ["snow", "24.0"], ["mean", "19.0"],
    ]  # (5 * 10 + 9 * 24) / 14  # fmt: skip
    errors[5] = 33.0
    assert cells(visit_table(["Source"], visits, [errors]))[1] == ["snow", "25.0"]


def test_a_cyclic_table_has_a_row_per_round() -> None:
    visits = make_visits(["fog", "snow"], [], 5, 2)
    table = visit_table(["Source", "TENT"], visits, [{0: 1.0, 1: 3.0, 2: 5.0, 3: 7.0}, {0: 0.0, 1: 2.0, 2: 9.0}])
    assert cells(table) == [
        ["round 1", "2.0", "1.0", "+1.0"], ["round 2", "6.0", "9.0", ""], ["mean", "4.0", "", ""],
    ]  # fmt: skip


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
    assert cells(scores) == [["ECE, %", "4.0"]]
    assert len(result_tables(["TENT"], [result([visit("fog", error=10.0)])])) == 1


def test_held_out_scores_have_their_own_rows() -> None:
    held_out = [visit("snow", error=30.0, nll=2.0)]
    _, scores = result_tables(["TENT"], [result([visit("fog", error=10.0, nll=1.0)], held_out)])
    assert cells(scores) == [["NLL", "1.000"], ["NLL (held out)", "2.000"]]


def test_rounds_have_a_table_of_their_own() -> None:
    domains = [DomainResult(name, 4, {"error": 10.0 * r + len(name)}, 5, r) for r in (1, 2) for name in ("fog", "snow")]
    _, rounds = result_tables(["Source", "TENT"], [result(domains), result(domains)])
    assert plain_table(rounds) == [
        "TENT, error, %  round 1  round 2",
        "fog                13.0     23.0",
        "snow               14.0     24.0",
    ]
    many = [DomainResult("fog", 4, {"error": 1.0}, 5, number) for number in range(1, 12)]
    assert len(result_tables(["TENT"], [result(many)])) == 1


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
    assert cells(orders_table(["Source", "TENT"], runs)) == [
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


def test_a_score_where_higher_is_better_is_declared_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    sharpness = Metric("sharpness", "sharpness", unit="dB", higher=True, digits=2, note="how sharp it is")
    monkeypatch.setattr(Classification, "others", (sharpness,))
    one, two = (result([visit("fog", error=10.0, sharpness=value)]) for value in (1.0, 1.5))
    _, scores = result_tables(["Source", "TENT"], [one, two])
    assert plain_table(scores)[1].split("  ")[-3:] == ["1.00", "1.50", "+0.50"]
    assert DomainResult.from_dict(two.domains[0].to_dict()) == two.domains[0]


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
    def maps(overlaps: list[float | None] | None) -> Result:
        found = [DomainResult("fog", 4, {"error": 10.0, "miou": 50.0}, class_iou=overlaps)]
        return Result({"task": "segmentation"}, {}, found, None, 1.0, {}, Path("run"), classes=("road", "train"))

    numbers = long_table([("TENT", [maps([40.0, 60.0]), maps([44.0, None]), maps(None)])])
    assert pivot(numbers, ("metric",), ())[("IoU of train",)] == [[60.0], [None], [None]]
