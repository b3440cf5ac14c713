"""Runs stored as lines of one file: read as if they were folders, written by every report."""

import json
from pathlib import Path
from typing import Any

import pytest
from page_cases import groups_of, three_methods, write_run

from support.errors import refused
from testdg.report.page import make_report
from testdg.report.runs import read_runs

COMMON = {
    "benchmark": "cifar10-c", "task": "classification", "kind": "continual", "data": "stored", "data_fingerprint": "no",
    "domains": ["snow", "fog"], "severity": 5, "batch_size": 40, "images_per_domain": 100, "model": "vit",
    "model_fingerprint": "not stored", "preprocessing": "112 px, bicubic", "precision": "bf16", "device": "cuda",
}  # fmt: skip


def line(method: str, scores: Any, **more: Any) -> dict[str, Any]:
    return {"experiment": "best", "name": method, "method": method, "seed": 0, "scores": scores, **more}


def store(folder: Path, *lines: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "runs.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ({"common": COMMON}, *lines)))
    return path


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


def test_a_line_with_only_the_essentials_is_a_run(tmp_path: Path) -> None:
    tent = line("tent", [30.0, 20.0], name="at 1e-3", preset="cifar10-c", settings={"learning_rate": 1e-3})
    store(tmp_path, line("source", [40.0, 30.0], name="Source"), tent)
    (group,) = groups_of(tmp_path)
    assert [(row.name, row.adapted.value.mean) for row in group.table.rows] == [
        ("Source", 35.0),
        ("TENT: at 1e-3", 25.0),
    ]
    assert group.table.rows[1].adapted.gain is not None
    assert group.table.rows[1].adapted.gain.mean == pytest.approx(10.0)
    page = make_report([tmp_path]).files["report.md"].decode()
    assert "112 px, bicubic" in page
    assert "figures/1-cifar10-c-continual-stream" not in page  # there are no events


def test_rounds_and_a_fork_are_read(tmp_path: Path) -> None:
    cyclic = {"kind": "cyclic", "domains": ["fog", "night"], "rounds": 2}
    store(
        tmp_path,
        line("tent", [[30.0, 20.0], [28.0, 18.0]], protocol=cyclic),
        line("tent", [30.0, 20.0], fork=1, held_out=[25.0], images=50),
    )
    forked, several = read_runs([tmp_path]).results[::-1]
    assert [(visit.name, visit.round, visit.error) for visit in several.domains] == [
        ("fog", 1, 30.0), ("night", 1, 20.0), ("fog", 2, 28.0), ("night", 2, 18.0),
    ]  # fmt: skip
    assert forked.record["held_out"] == ["fog"]
    assert forked.held_out is not None
    assert forked.held_out[0].error == 25.0
    assert forked.record["images_per_domain"] == 50


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"experiment": "best", "name": "tent", "seed": 0, "scores": [1.0, 2.0]}, "it has no 'method'"),
        (line("tent", [1.0]), "shorter than"),
        ([], "list"),
        (line("tent", [1.0, None]), "float"),
        (line("tent", [1.0, 2.0], protocol={"preprocessing": None}), "subscriptable"),
    ],
)
def test_an_incomplete_line_is_left_out_and_counted(tmp_path: Path, wrong: Any, reason: str) -> None:
    store(tmp_path, line("source", [40.0, 30.0]), wrong)
    runs = read_runs([tmp_path])
    assert len(runs.results) == 1
    (sentence,) = runs.damaged
    assert "line 3" in sentence
    assert reason in sentence


def test_many_incomplete_lines_are_one_short_sentence(tmp_path: Path) -> None:
    with refused("damaged-file", "line 2 ", "line 3 ", "line 4 ", "6 more"):
        read_runs([store(tmp_path, *([{}] * 9))])
