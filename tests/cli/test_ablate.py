import json
from pathlib import Path

import pytest

from testdg.cli.app import execute
from testdg.studies.ablations import ABLATIONS


@pytest.fixture
def small(model: Path, tmp_path: Path) -> list[str]:
    place = ["--model", str(model), "--out", str(tmp_path / "runs"), "--device", "cpu"]
    return [*place, "--images", "4", "--batch-size", "2", "--domains", "fog,contrast"]


def test_an_ablation_gives_a_table_and_the_published_numbers_apart(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--csv", str(tmp_path / "table.csv"), "--markdown", str(tmp_path / "table.md")]
    assert execute(["ablate", "distance", *small, *files, "--set", "threshold=0"]) == 0
    measured, published = capsys.readouterr().out.split("published, ViT-B/16 on CIFAR-10-C: other model, other stream")
    for row in ("Source", "distance mmd", "distance hausdorff", "distance chamfer"):
        assert f"\n{row} " in measured
    assert "8.2" in published
    assert "distance chamfer" in (tmp_path / "table.csv").read_text(encoding="utf-8")
    assert "## published" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert execute(["ablate", "distance", *small, "--set", "threshold=0", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert shown.err.count("(read back)") == 4
    assert [row["settings"]["threshold"] for row in found["tables"][0]["rows"][1:]] == [0.0, 0.0, 0.0]
    assert found["published"]["rows"]["distance chamfer"] == [7.7]
    assert execute(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report"), "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    names = ["Source", *(f"TestDG: distance {name}" for name in ("mmd", "hausdorff", "chamfer"))]
    assert [row["name"] for row in group["rows"]] == names


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["ablate", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ABLATIONS)
    assert execute(["ablate", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == list(ABLATIONS)
