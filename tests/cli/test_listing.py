import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import testdg
from support.commands import refuses
from testdg.cli.app import execute
from testdg.data.benchmarks import benchmarks
from testdg.methods import methods


def test_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["methods"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in methods())
    assert execute(["methods", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found.keys() == methods().keys()
    assert found["tent"]["citation"] == methods()["tent"].citation
    assert all({"title", "tasks", "needs"} <= entry.keys() for entry in found.values())


def test_one_method_with_settings_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["methods", "tent"]) == 0
    shown = capsys.readouterr().out
    assert "learning_rate" in shown
    assert "preset digits-c (applied automatically): learning_rate=0.001" in shown
    assert "preset cifar10-c: learning_rate=0.001" in shown
    assert execute(["methods", "tent", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {setting["name"] for setting in found["settings"]} >= {"seed", "learning_rate"}
    assert "digits-c" in found["presets"]


@pytest.mark.parametrize(
    ("method", "tasks"),
    [("tent", []), ("vida", ["segmentation"]), ("dept", ["classification", "segmentation"])],
)
def test_reconstructions_are_marked(method: str, tasks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["methods", method, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reconstruction"] == tasks
    assert execute(["methods", method]) == 0
    assert (f"a reconstruction for {' and '.join(tasks)}" in capsys.readouterr().out) is bool(tasks)


@pytest.mark.parametrize(("words", "values"), [(["methods", "tnt"], ("'tnt'", "'tent'")), (["rum"], ("'rum'",))])
def test_unknown_names_are_refused(
    words: list[str], values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(capsys, words, *values)


def test_benchmarks_are_listed_with_the_input_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["benchmarks", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(found) == list(benchmarks())
    assert found["cifar10-c"]["paper_input"] == "384 px bilinear; mean 0, std 1"
    assert found["imagenet-c"]["paper_input"] == "256 px bilinear, centre 224; mean 0, std 1"
    assert found["imagenet-c"]["classes"] == "by folder"
    assert execute(["benchmarks"]) == 0
    assert "digits-c" in capsys.readouterr().out


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room enough for any line, whatever COLUMNS the tests were started with."""
    monkeypatch.setenv("COLUMNS", "400")


def test_a_data_folder_is_checked(wide: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "cifar10.npz", x_test=np.zeros((2, 32, 32, 3), np.uint8), y_test=[0, 1])
    assert execute(["benchmarks", "--check", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"CIFAR-10 +wrong +2 test images, 0 training images", shown)
    assert f"wrong  CIFAR-10: {tmp_path / 'cifar10.npz'} has 2 test images: expected 10000\n" in shown
    assert execute(["benchmarks", "--check", str(tmp_path), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["folder"]) == ("CIFAR-10", str(tmp_path / "cifar10.npz"))
    assert len(found["problems"]) == 1


def test_a_data_folder_may_be_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "val" / "n01440764").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "val" / "n01440764" / "ILSVRC2012_val_00000001.JPEG")
    assert execute(["benchmarks", "--check", str(tmp_path)]) == 0
    assert re.search(r"ImageNet val +fine +1 images, 1 classes", capsys.readouterr().out)


def test_data_folders_with_nothing_known(wide: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "a, b"):
        (tmp_path / name).mkdir()
    for names in (["one", "two"], ["a, b"]):  # several folders, and one with a comma in its name
        folders = [str(tmp_path / name) for name in names]
        assert execute(["benchmarks", "--check", ", ".join(folders)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(" has ")[0] for line in lines] == folders
        assert all("looked for CIFAR-10-C" in line for line in lines)
    refuses(capsys, ["benchmarks", "--check", tmp_path / "nowhere"], tmp_path / "nowhere")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"testdg {testdg.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom testdg.cli.app import execute\n"
        f"code = execute({arguments!r})\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'matplotlib', 'transformers'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_no_command_shows_help_and_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([]) == 2
    shown = capsys.readouterr()
    assert "Usage: testdg" in shown.out + shown.err


def test_lists_fit_into_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["methods"], ["methods", "testdg_aligned"], ["methods", "tent"]):
        assert execute(words) == 0
        shown = capsys.readouterr().out.splitlines()
        assert max(map(len, shown)) <= 81
        assert len(shown) < 100


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("testdg", ["as_released", "threshold", "learning_rate", "discrimination_weight", "invariance_weight"]),
        ("testdg_aligned", ["learning_rate", "momentum", "source_share", "diversity_weight", "invariance_weight"]),
        ("tent", ["learning_rate", "steps", "loss", "optimizer", "batch_statistics"]),
    ],
)
def test_the_settings_that_matter_come_first(
    wide: None, method: str, first: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["methods", method]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith(" ") and line.split()]
    start = rows.index("name") + 2
    assert rows[start : start + 5] == first
    assert rows.index("seed") >= start + 5


def test_what_is_public_is_shown() -> None:
    assert dir(testdg) == sorted(testdg.__all__)
    assert {"adapt", "load_model", "guard"} <= set(dir(testdg))


def test_switches_have_no_type(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["run", "--help"], ["train", "--help"], ["--help"]):
        execute(words)
        shown = capsys.readouterr().out
        assert "--help" in shown
        assert "bool" not in shown


@pytest.mark.parametrize(("words", "found"), [("testdg ru", "run"), ("testdg run --prot", "--protocol")])
def test_the_shell_completes(words: str, found: str) -> None:
    code = "import sys; from testdg.cli.app import execute; sys.exit(execute())"
    completion = {"_TESTDG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    environment = {**os.environ, **completion, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ended.stdout.split() == [found], ended.stderr
