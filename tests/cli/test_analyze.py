import json
from pathlib import Path

import pytest
import torch

from testdg.cli.app import execute
from testdg.models import Preprocessing, TinyViT, VisionModel
from testdg.studies.analyses import ANALYSES


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    torch.manual_seed(0)
    network = TinyViT(patch=8, width=16, depth=1, heads=2)
    VisionModel(network, "head", Preprocessing((32, 32)), "random-vit").save(tmp_path / "vit")
    place = ["--model", str(tmp_path / "vit"), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "found")]
    return [*place, "--device", "cpu", "--images", "4", "--batch-size", "2", "--domains", "fog,contrast"]


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
    told = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in told["found"]["groups"][0]["rows"]} == {"Source", "TENT", "TestDG"}
    assert Path(told["figure"]).read_bytes().startswith(b"\x89PNG")


def test_an_analysis_that_goes_through_the_stream_leaves_no_run(small: list[str], tmp_path: Path) -> None:
    sure = ["--set", "testdg.threshold=0"]
    assert execute(["analyze", "drift", *small, *sure]) == 0
    found = json.loads((tmp_path / "found" / "drift.json").read_text(encoding="utf-8"))
    assert found["method"]["settings"]["threshold"] == 0
    assert found["numbers"]["changes"] == [2, 4, 6]
    assert not (tmp_path / "runs").exists()


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["analyze", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ANALYSES)
    assert execute(["analyze", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == list(ANALYSES)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["gpa"], "unknown analysis 'gpa'; did you mean 'gap'?"),
        (["gap", "--methods", "tent"], "tent has no domain embeddings: use --space features, or testdg"),
        (["gap", "--space", "feature"], "unknown space 'feature'; did you mean 'features'?"),
        (["drift", "--methods", "tent"], "drift looks at domain prototypes, which tent does not have: use testdg"),
        (["attention"], "model vit does not give attention maps: use a Hugging Face ViT"),
        (["gap", "--seeds", "0,1"], "gap looks at one run: name one method and one seed; got 2"),
        (["stream", "--protocol", "orders"], "stream looks at one stream: name one benchmark, and a protocol with one"),
        (["stream", "--jobs", "0"], "jobs must be at least 1; got 0"),
        (["gap", "--figure", "x.jpg"], "figure x.jpg must end in .png, .pdf or .svg"),
        (["gap", "--figure", "none/x.png"], "none/x.png cannot be written: name a file in a folder that exists"),
        (["stream", "--methods", "tnet"], "analysis stream: unknown method 'tnet'; did you mean 'tent'?"),
        (["attention", "--methods", "tent"], "attention compares variants of testdg alone; got ['tent']: leave out"),
        (["gap", "--out", "vit/model.safetensors"], "vit/model.safetensors is a file: choose a folder with --out"),
        (["gap", "--runs", "vit/model.safetensors"], "vit/model.safetensors is a file: choose a folder with --runs"),
        (["gap", "--set", "tent.steps=2"], "--set tent.steps=2 names none of the methods testdg"),
        (
            ["overview"],
            "overview reads run folders (--runs) and runs nothing: leave out --model, --device, --batch-size",
        ),
        (["drift", "--set", "testdg.threshold=1"], "no domain change was detected on this stream"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(
    more: list[str],
    sentence: str,
    small: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    place = [argument.removeprefix(f"{tmp_path}/") for argument in small]
    assert execute(["analyze", *place, *more]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"testdg: {sentence}")
    assert shown.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vit"]


def test_an_overview_of_no_runs_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["analyze", "overview", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "found")]) == 2
    sentence = "runs holds no complete runs: name their parent folder with --runs, or run a bench first"
    assert sentence in capsys.readouterr().err
