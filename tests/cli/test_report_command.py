import json
from pathlib import Path

import pytest

from support.commands import refuses
from testdg.cli.app import execute

FILES = ("report.html", "report.md", "report.tex", "report.csv", "runs.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Source and TENT with two seeds on a small stream."""
    folder = tmp_path_factory.mktemp("report")
    place = ["--model", str(model), "--out", str(folder / "runs"), "--device", "cpu"]
    small = ["--images", "4", "--domains", "fog,contrast"]
    for seed in ("0", "1"):
        assert execute(["run", *place, *small, "--method", "tent", "--seed", seed, "--json"]) == 0
    return folder / "runs"


def test_run_folders_become_a_page_with_tables_and_figures(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    assert execute(["report", str(runs), "--out", str(out), "--title", "My page"]) == 0
    shown = capsys.readouterr().out
    assert "digits-c, continual: " in shown
    assert "3 runs of 2 methods in 1 group." in shown
    assert f"page    {out / 'report.html'}\n" in shown
    assert "<title>My page</title>" in (out / "report.html").read_text(encoding="utf-8")
    assert {path.name for path in out.iterdir()} == {*FILES, "figures"}


def test_the_numbers_of_a_report_are_those_of_the_runs(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["report", str(runs), "--out", str(tmp_path), "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    results = [json.loads(path.read_text()) for path in runs.glob("*-tent-*/result.json")]
    errors = sorted(result["mean_error"] for result in results)
    (row,) = (row for row in group["rows"] if row["name"] == "TENT")
    assert sorted(run["mean_error"] for run in row["runs"]) == errors
    assert row["error"]["error"]["mean"] == pytest.approx(sum(errors) / 2)


def test_mistakes_are_refused_and_nothing_is_written(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    (tmp_path / "empty").mkdir()
    refuses(capsys, ["report", runs, tmp_path / "empty", "--out", out], tmp_path / "empty", "result.json")
    assert not out.exists()
    assert execute(["report"]) == 2


def test_a_damaged_run_is_left_out_and_named(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "result.json").write_text("[]")
    places = ["report", str(runs), str(tmp_path / "damaged"), "--out", str(tmp_path / "report")]
    assert execute(places) == 0
    shown = capsys.readouterr()
    assert "3 runs of 2 methods in 1 group; 1 run damaged and left out." in shown.out
    assert str(tmp_path / "damaged" / "result.json") in shown.err
    assert execute([*places, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["damaged"]) == 1


def test_a_run_with_a_guard_is_a_row_of_its_own(
    runs: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--model", str(model), "--device", "cpu", "--images", "4", "--domains", "fog,contrast"]
    assert execute(["run", *small, "--method", "tent", "--guard", "--out", str(tmp_path / "runs"), "--json"]) == 0
    capsys.readouterr()
    assert execute(["report", str(runs), str(tmp_path / "runs"), "--out", str(tmp_path / "page"), "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    names = {row["name"]: len(row["runs"]) for row in group["rows"] if row["name"] != "Source"}
    assert names == {"TENT (guard=false)": 2, "TENT (guard=true)": 1}
