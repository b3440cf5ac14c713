"""Runs stored as lines of one file: read as if they were folders, written by every report."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.errors import refused
from support.stored_runs import three_methods, write_run
from testdg.report.page import make_report
from testdg.report.runs import read_runs


def test_a_report_of_lines_is_the_report_of_their_folders(tmp_path: Path) -> None:
    three_methods(tmp_path / "runs")
    write_run(tmp_path / "runs" / "mine", "align", {"fog": 9.0}, source="clean")
    (tmp_path / "runs" / "mine" / "rows.json").write_text(json.dumps({"a grid": [3, "own source"]}))
    folders = make_report([tmp_path / "runs"])
    (tmp_path / "runs.jsonl").write_bytes(folders.files["runs.jsonl"])
    lines = make_report([tmp_path / "runs.jsonl"])
    for name in ("report.csv", "report.tex", "runs.jsonl"):
        assert lines.files[name] == folders.files[name]
    assert "Align: own source" in lines.files["report.md"].decode()


def test_a_folder_and_its_line_are_one_run(tmp_path: Path) -> None:
    three_methods(tmp_path)
    content = make_report([tmp_path]).files["runs.jsonl"]
    (tmp_path / "runs.jsonl").write_bytes(content)
    runs = read_runs([tmp_path])
    assert runs.copies == len(runs.results) == len(content.splitlines())
    assert all((result.folder / "events.jsonl").exists() for result in runs.results)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": None}, "subscriptable"),
        ({"domains": [{"name": "fog"}]}, "it has no 'images'"),
        ({"folder": 3, "protocol": []}, "list"),
    ],
)
def test_a_damaged_line_is_left_out_and_counted(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    three_methods(tmp_path / "runs")
    lines = make_report([tmp_path / "runs"]).files["runs.jsonl"].decode().splitlines()
    path = tmp_path / "stored" / "runs.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join([lines[0], json.dumps({**json.loads(lines[1]), **change})]) + "\n")
    runs = read_runs([path])
    assert len(runs.results) == 1
    (sentence,) = runs.damaged
    assert str(path.parent) in sentence
    assert reason in sentence


def test_many_damaged_lines_are_one_short_sentence(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("{}\n" * 9)
    with refused("damaged-file", "line 1 ", "line 2 ", "line 3 ", "6 more"):
        read_runs([path])
