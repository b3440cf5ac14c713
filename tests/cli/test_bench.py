import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from support.commands import refuses
from support.results import make_result
from testdg.cli.app import execute
from testdg.cli.display import BenchDisplay, Forecast, duration
from testdg.runs import Result
from testdg.studies import Complete, Failed, Grid, Running, RunSpec, expand


@pytest.fixture
def small(model: Path, tmp_path: Path) -> list[str]:
    place = ["--model", str(model), "--out", str(tmp_path / "runs"), "--device", "cpu"]
    return ["bench", *place, "--images", "4", "--domains", "fog,contrast,snow"]


def test_a_grid_of_options_gives_a_table_for_each_protocol(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--csv", str(tmp_path / "table.csv"), "--markdown", str(tmp_path / "table.md")]
    lists = ["--methods", "source,tent", "--protocols", "continual,held-out,held_out=1", "--seeds", "0,1"]
    assert execute([*small, *lists, *files, "--set", "tent.steps=2"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 6  Source, digits-c, continual: " in shown
    assert "settings   the method's preset for digits-c; chosen by the user: steps" in shown
    tables = [line.split() for line in shown.splitlines() if line.startswith(("Source  ", "TENT  "))]
    assert [(line[0], line[1]) for line in tables] == 2 * [("Source", "1"), ("TENT", "2")]
    assert len(list((tmp_path / "runs").glob("digits-c-source-*"))) == 2
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text(encoding="utf-8"))))
    assert [line["protocol"] for line in lines] == 2 * ["continual"] + 2 * ["held-out,held_out=1"]
    assert [line["held_out_mean"] != "" for line in lines] == [False, False, True, True]
    assert "## digits-c, held-out,held\\_out=1\n" in (tmp_path / "table.md").read_text(encoding="utf-8")


GRID = """
method = "tent"
seeds = [0, 1]
[[run]]
[[run]]
name = "TENT, slow"
settings = { learning_rate = 1e-6 }
"""


def test_a_file_with_a_failing_run_gives_the_rest_and_code_1(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    run = ["run", *small[1:], "--method", "tent", "--set", "learning_rate=1e-6", "--json"]
    assert execute(run) == 0
    (folder,) = (tmp_path / "runs").glob("digits-c-tent-*")
    (folder / "result.json").write_text("{")
    capsys.readouterr()
    assert execute([*small, str(tmp_path / "grid.toml"), "--json", "--jobs", "2"]) == 1
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    (table,) = found["tables"]
    assert [(row["name"], len(row["runs"])) for row in table["rows"]] == [("Source", 1), ("TENT", 2), ("TENT, slow", 1)]
    assert table["rows"][2]["settings"]["learning_rate"] == 1e-6
    assert table["conditions"]["images_per_domain"] == 4
    assert [end["run"] for end in found["failed"]] == ["TENT, slow, digits-c, continual, seed 0"]
    last = shown.err.splitlines()[-1]
    assert last.startswith("testdg: TENT, slow, digits-c, continual, seed 0: ")
    assert "result.json" in last
    assert "5 of 5" in shown.err
    assert " of 5  Source, digits-c, continual: " in shown.err
    assert "(read back)" in shown.err  # Source, which `testdg run` made


def specs() -> list[RunSpec]:
    return expand(Grid({"method": ["tent", "testdg"], "domains": ["fog"], "images": 200}))  # 10 batches each


def result(error: float) -> Result:
    return make_result("tent", {"fog": error}, Path("run"))


def test_the_time_left_comes_from_the_pace_of_each_method() -> None:
    now = 0.0
    forecast = Forecast(specs(), jobs=2, clock=lambda: now)
    assert forecast.seconds() is None
    forecast.update(Running(0, 0, None, ""))
    assert forecast.seconds() is None
    now = 4.0
    forecast.update(Running(0, 4, 50.0, "fog"))
    assert forecast.seconds() == pytest.approx((6 + 10 + 10) * 1.0 / 2)  # others are taken to be as fast
    forecast.update(Complete(0, result(50.0)))
    forecast.update(Running(1, 2, None, ""))  # two batches were there before
    now = 10.0
    forecast.update(Running(1, 5, 40.0, "fog"))
    assert forecast.seconds() == pytest.approx((5 * 2.0 + 10 * 1.5) / 2)
    forecast.update(Failed(1, "x"))
    assert forecast.seconds() == pytest.approx(10 * 1.5)
    assert [duration(seconds) for seconds in (3.2, 119, 7200)] == ["3 s", "2 min", "2.0 h"]


@pytest.mark.parametrize("terminal", [False, True])
def test_the_display_shows_what_runs_and_what_ended(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BenchDisplay, "interval", 0.0)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False)
    with BenchDisplay(console, specs(), jobs=1) as display:
        display.notify(Running(0, 0, None, ""))
        display.notify(Running(0, 5, 41.5, "fog"))
        display.live.refresh()
        display.notify(Complete(0, result(40.0)))
        display.notify(Running(1, 10, 33.0, "fog"))
        display.notify(Complete(1, result(33.0)))
        display.notify(Failed(2, "no memory:\n  try less"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "error 41.5 %, fog" in shown
    assert "1 of 3  Source, digits-c, continual: 40.00 % (2 s)" in shown
    assert "2 of 3  TENT, digits-c, continual, seed 0: 33.00 % (read back)" in shown
    assert "3 of 3  TestDG, digits-c, continual, seed 0: failed: no memory: try less" in shown
    assert ("━" in shown) == terminal


def test_the_help_has_room_for_words_and_both_names_are_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert execute(["bench", "--help"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.lstrip("│ ").startswith("--")]
    assert any("--methods" in line for line in lines)
    assert all(len(line.split("--", 1)[1].split("  ")[0]) < 20 for line in lines)
    for name in ("--method", "--methods"):
        refuses(capsys, ["bench", name, "nothing", "--images", "2"], "'nothing'")
