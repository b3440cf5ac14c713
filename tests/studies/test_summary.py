import csv
import io
from pathlib import Path
from typing import Any

import pytest

from support.results import RECORD, make_result
from testdg.report.bench import Layout, bench_text
from testdg.runs import Protocol, Result
from testdg.studies import BenchTable, Complete, Failed, RunSpec, summarise

Run = tuple[RunSpec, Result]


def run(name: str, errors: list[float], *, held_out: list[float] | None = None, seed: int = 0, **changes: Any) -> Run:
    domains = changes.pop("domains", RECORD["domains"])
    method = "source" if name == "Source" else "tent"
    tested = None if held_out is None else dict(zip(["frost", "blur"], held_out, strict=True))
    scores = dict(zip(domains, errors, strict=True))
    result = make_result(method, scores, Path(f"{name}-{seed}"), tested, seed=seed, **changes)
    about = {"name": name, "method": method, "benchmark": "digits-c", "protocol": result.record["kind"]}
    sizes = {"batch_size": result.record["batch_size"], "batches": 2}
    return RunSpec(**about, **sizes, stream=Protocol(order=tuple(domains)), seed=seed), result


def tables(*runs: Run) -> list[BenchTable]:
    specs = [spec for spec, _ in runs]
    return summarise(specs, [Complete(number, result) for number, (_, result) in enumerate(runs)])


def three_runs() -> list[BenchTable]:
    return tables(run("Source", [40, 20]), run("TENT", [30, 20], seed=0), run("TENT", [32, 24], seed=1))


def test_a_row_has_mean_deviation_gain_and_seconds() -> None:
    (table,) = three_runs()
    source, tent = table.rows
    assert (source.adapted.value.mean, source.adapted.value.deviation, source.adapted.gain) == (30, None, None)
    assert (tent.adapted.value.mean, tent.seconds) == (26.5, 2.5)
    assert tent.adapted.value.deviation == pytest.approx(4.5**0.5)  # of 25 and 28
    assert tent.adapted.gain is not None
    assert tent.adapted.gain.mean == 3.5  # of 10, 0, 8 and -4
    assert tent.held_out is None
    assert bench_text([table]).splitlines()[-3:] == [
        "        runs      error, %   gain    95 % interval  seconds",
        "Source     1         30.00                              2.0",
        "TENT       2  26.50 ± 2.12  +3.50  -4.00 to +10.00      2.5",
    ]
    assert "numbers    fp32 on cpu, seed 0, 1" in bench_text([table])


def test_held_out_domains_have_their_own_columns() -> None:
    (table,) = tables(run("Source", [40, 20], held_out=[10, 20]), run("TENT", [30, 20], held_out=[14, 18]))
    assert table.rows[1].held_out is not None
    assert table.rows[1].held_out.gain is not None
    assert table.rows[1].held_out.gain.mean == -1
    assert bench_text([table]).splitlines()[-1].split() == (
        ["TENT", "1", "25.00", "+5.00", "+0.00", "to", "+10.00", "16.00", "-1.00", "-4.00", "to", "+2.00", "2.0"]
    )


@pytest.mark.parametrize("change", [{"batch_size": 1}, {"model_fingerprint": "x"}, {"domains": ["snow", "fog"]}])
def test_results_that_cannot_be_compared_have_tables_of_their_own(change: dict[str, Any]) -> None:
    first, second = tables(run("Source", [40, 20]), run("TENT", [30, 20]), run("TENT", [10, 0], kind="other", **change))
    assert [row.name for row in first.rows] == ["Source", "TENT"]
    assert [row.name for row in second.rows] == ["TENT"]
    assert second.rows[0].adapted.gain is None  # its Source is not there
    same_name = tables(run("TENT", [30, 20]), run("TENT", [10, 0], **change))
    assert len(same_name) == (1 if "domains" in change else 2)


def test_orders_of_one_protocol_share_a_table_and_are_paired_by_order() -> None:
    orders = [("order 0", ["fog", "snow"]), ("order 1", ["snow", "fog"])]
    about = [{"kind": "orders", "order": order, "domains": domains} for order, domains in orders]
    (table,) = tables(
        run("Source", [40, 20], **about[0]), run("Source", [20, 40], **about[1]),
        run("TENT", [30, 20], **about[0]), run("TENT", [18, 38], **about[1]),
    )  # fmt: skip
    source, tent = table.rows
    assert len(source.results) == len(tent.results) == 2
    assert tent.adapted.gain is not None
    assert tent.adapted.gain.mean == (10 + 0 + 2 + 2) / 4
    assert "orders     2, one run each; the first is described above" in bench_text([table])


def test_a_row_without_its_failed_runs() -> None:
    runs = [run("Source", [40, 20]), run("TENT", [30, 20]), run("TENT", [30, 20], seed=1)]
    ends = [Complete(0, runs[0][1]), Failed(1, "no memory"), Complete(2, runs[2][1])]
    (table,) = summarise([spec for spec, _ in runs], ends)
    assert [len(row.results) for row in table.rows] == [1, 1]
    assert summarise([runs[0][0]], [Failed(0, "no memory")]) == []


def test_markdown_and_csv_hold_the_same_numbers() -> None:
    shown = Layout().markdown(three_runs())
    assert shown.startswith("## digits-c, continual\n\n```text\nbenchmark  digits-c, continual")
    assert "| TENT | 2 | **26.50 ± 2.12** | +3.50 | -4.00 to +10.00 | 2.5 |\n" in shown
    lines = list(csv.DictReader(io.StringIO(Layout().csv(three_runs()))))
    assert [(line["name"], line["runs"], line["mean"], line["gain"]) for line in lines] == [
        ("Source", "1", "30.0", ""), ("TENT", "2", "26.5", "3.5"),
    ]  # fmt: skip
    assert float(lines[1]["gain_low"]) == -4
    assert lines[1]["held_out_mean"] == ""
    assert Layout().csv([]) == "benchmark\n"


def test_origins_of_settings_are_shown() -> None:
    (table,) = tables(run("Source", [4, 2]), run("a", [3, 2]), run("b", [3, 2], tuning="the method's preset for x"))
    lines = bench_text([table]).splitlines()
    first = lines.index("settings   a: the method's defaults")
    assert lines[first + 1] == "           b: the method's preset for x"
