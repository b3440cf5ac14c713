import json
import re
from pathlib import Path

import pytest

from support.commands import refuses
from testdg.cli.app import execute
from testdg.studies.variants import Tuned, TunedRow


def short_runs(model: Path, images: int) -> list[str]:
    place = ["--model", str(model), "--device", "cpu", "--domains", "fog,contrast"]
    return [*place, "--images", str(images), "--batch-size", "4"]


def test_methods_are_compared_on_all_streams_and_the_best_on_more(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = short_runs(model, images=8)
    command = ["leaderboard", "neo", "roid:uncorrected", *small, "--best", "1", "--seeds", "0,1"]
    assert execute(command) == 0
    shown = capsys.readouterr().out
    head, *rows = [line for line in shown.splitlines() if re.match("method|Source|NEO |ROID \\(unc", line)]
    columns = re.split(r"\s{2,}", head)
    assert columns == [
        "method", "mean", "continual", "held out", "another order", "dirichlet", "three rounds", "gradual",
        "batches of 10", "single images", "five times longer", "worst case", "on", "ms", "MiB", "parameters",
        "source images",
    ]  # fmt: skip
    assert sorted(line.split("  ")[0] for line in rows) == ["NEO", "ROID (uncorrected)", "Source"]
    folder = tmp_path / "leaderboard"
    costs = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
    assert sorted(cost["parameters"] > 0 for cost in costs.values()) == [False, False, True]
    lines = (folder / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 7 * 3 + 7 + 1 + 2  # all; the best with another seed; Source and both seeds on the longest
    page, text = (
        (folder / "leaderboard.html").read_text(encoding="utf-8"),
        (folder / "leaderboard.md").read_text("utf-8"),
    )
    assert page.count("<svg") == 2
    assert page.count("<table") == 9
    assert "<script src" not in page
    assert "## digits-c, single images" in text
    assert "chosen by the user: prior" in text
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".png", ".svg", ".pdf"}

    (tmp_path / "sub").mkdir()
    more = ["--csv", "sub/t.csv", "--markdown", "sub/t.md", "--jsonl", "sub/t.jsonl"]
    assert execute(["leaderboard", "--show", "leaderboard", "--report", "again", *more]) == 0
    assert (tmp_path / "sub" / "t.csv").read_text(encoding="utf-8").count("\n") == 1 + 7 * 3 + 2
    assert "](../again/figures/cost.png)" in (tmp_path / "sub" / "t.md").read_text(encoding="utf-8")
    assert (tmp_path / "sub" / "t.jsonl").read_text(encoding="utf-8").splitlines() == lines
    for name in ("leaderboard.html", "leaderboard.md"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_a_leaderboard_takes_the_rows_of_a_file_of_chosen_settings(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Tuned({}, {"neo": TunedRow("NEO", "neo", "none", {"share": 0.1})}).write(tmp_path / "tuned.toml")
    small = short_runs(model, images=4)
    assert execute(["leaderboard", *small, "--tuned", "tuned.toml", "--best", "0", "--no-cost", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"] for table in found["tables"] for row in table["rows"]} == {"Source", "NEO"}
    assert {table["rows"][1]["tuning"] for table in found["tables"]} == {
        "the method's defaults; chosen in tuned.toml: share"
    }
    Tuned({}, {"roid": TunedRow("ROID", "roid", "none", {"learning_rate": 1e-5})}).write(tmp_path / "tuned.toml")
    refuses(
        capsys, ["leaderboard", "roid:uncorrected", *small, "--tuned", "tuned.toml"], "tuned.toml", "roid:uncorrected"
    )


def test_a_leaderboard_is_run_in_parts_and_shown_as_one(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = short_runs(model, images=8)
    part = ["leaderboard", "source", "neo", *small, "--seeds", "0,1", "--no-cost"]
    assert execute([*part, "--streams", "sorted, dirichlet 0.01", "--best", "1", "--report", "a", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert [table["protocol"] for table in tables] == ["dirichlet 0.01", "sorted"]
    assert [[len(row["runs"]) for row in table["rows"]] for table in tables] == [[1, 2], [1, 2]]
    records = [table["conditions"] for table in tables]
    assert [(one["sampling"], one["concentration"]) for one in records] == [("dirichlet", 0.01), ("sorted", "none")]

    assert execute([*part, "--streams", "continual,sorted", "--best", "0", "--report", "b"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("(read back)") + shown.out.count("(read back)") == 2
    assert execute(["leaderboard", "--show", "a", "--show", "b", "--report", "both"]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("method"))
    assert re.split(r"\s{2,}", head)[:6] == ["method", "mean", "continual", "held out", "dirichlet 0.01", "sorted"]
    assert len((tmp_path / "both" / "runs.jsonl").read_text(encoding="utf-8").splitlines()) == 2 + 2 * 3
