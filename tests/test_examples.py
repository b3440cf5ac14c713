"""The scripts in examples/ run on little data and print the right things."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from testdg.models import Preprocessing, load_model
from testdg.models.segformer import tiny_segformer

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def place(shared_cache: Path, tmp_path: Path) -> Path:
    return tmp_path


def run(place: Path, name: str, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / f"{name}.py"), *words]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def errors(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?:error|mIoU) +(\d+\.\d) %", text)]


def test_scripts_are_short() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 5
    for script in scripts:
        assert script.read_text(encoding="utf-8").count("\n") <= 60, script.name


def test_a_classifier_of_ones_own_gets_better(place: Path) -> None:
    source, adapted = errors(run(place, "own_classifier", "200"))
    assert adapted < source - 5


def test_a_folder_of_frames_is_predicted_and_its_state_saved(place: Path) -> None:
    assert "180 frames" in run(place, "folder_of_frames")
    assert (place / "frames-state" / "state.json").is_file()


def test_a_segmentation_stream_is_scored(place: Path) -> None:
    torch.manual_seed(0)
    load_model(tiny_segformer(9), preprocessing=Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3)).save(place / "model")
    source, adapted = errors(run(place, "segmentation_stream", "4", "model"))
    assert 0 < source < 100
    assert adapted != source


def test_a_method_of_ones_own_passes_the_checks(place: Path) -> None:
    output = run(place, "own_method", "20")
    assert re.search(r"passes 1\d checks", output)
    source, own = errors(output)
    assert own != source


@pytest.mark.slow
def test_a_study_has_tables_and_a_page(place: Path) -> None:
    output = run(place, "study", "20")
    assert all(name in output for name in ("TestDG aligned", "L_self", "without amplifier"))
    assert "failed" not in output
    assert (place / "study" / "report" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (EXAMPLES / "notebooks").glob("*.py")))
def test_a_notebook_runs_and_draws(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jupytext = pytest.importorskip("jupytext", reason="notebooks need pip install 'testdg[docs]'")
    client = pytest.importorskip("nbclient", reason="notebooks need pip install 'testdg[docs]'")
    pytest.importorskip("ipykernel", reason="notebooks need pip install 'testdg[docs]'")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("IMAGES", "40")
    notebook = jupytext.read(EXAMPLES / "notebooks" / f"{name}.py")
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(place)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert len(errors("".join(output.get("text", "") for output in outputs))) >= 2
