import json
from pathlib import Path

import pytest

from support.commands import refuses
from testdg.cli.app import execute
from testdg.studies.analyses import ANALYSES


@pytest.fixture
def small(model: Path, tmp_path: Path) -> list[str]:
    place = [
        "--model",
        str(model),
        "--runs",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "found"),
        "--device",
        "cpu",
    ]
    return [*place, "--images", "4", "--batch-size", "2", "--domains", "fog,contrast"]


def test_numbers_and_a_figure_are_written(small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "figure.svg"
    lists = ["--methods", "tent,testdg", "--set", "testdg.threshold=0"]
    assert execute(["analyze", "stream", *small, *lists, "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert f"numbers  {tmp_path / 'found' / 'stream.json'}\nfigure   {figure}\n" in shown
    found = json.loads((tmp_path / "found" / "stream.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in found["numbers"]["rows"]] == ["Source", "TENT", "TestDG"]
    assert found["protocol"]["images_per_domain"] == 4
    assert "Source, TENT, TestDG on digits-c" in figure.read_text(encoding="utf-8")
    assert execute(["analyze", "overview", *small[2:6], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in found["found"]["groups"][0]["rows"]} == {"Source", "TENT", "TestDG"}
    assert Path(found["figure"]).read_bytes().startswith(b"\x89PNG")


def test_an_analysis_that_goes_through_the_stream_leaves_no_run(small: list[str], tmp_path: Path) -> None:
    assert execute(["analyze", "drift", *small, "--set", "testdg.threshold=0"]) == 0
    found = json.loads((tmp_path / "found" / "drift.json").read_text(encoding="utf-8"))
    assert found["method"]["settings"]["threshold"] == 0
    assert found["numbers"]["changes"] == [2, 4, 6]
    assert not (tmp_path / "runs").exists()


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["analyze", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ANALYSES)
    assert execute(["analyze", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == list(ANALYSES)


def test_an_overview_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--runs", tmp_path / "runs", "--out", tmp_path / "found"]
    refuses(capsys, ["analyze", "overview", *places], tmp_path / "runs", "--runs")
