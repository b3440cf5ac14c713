import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from support.errors import refused
from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import to_float
from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, load_model
from testdg.runs.training.fine_tune import clean_scores, fine_tune, starting_model
from testdg.runs.training.recipe import ClassTuning

SHORT = ClassTuning(epochs=2, images=96, batch_size=16, learning_rate=1e-3, flip=False)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with BatchNorm, whose statistics a state must hold, and with other classes."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "cnn"
    load_model(TinyCNN(classes=7, width=4)).save(folder)
    return folder


def weights(folder: Path) -> str:
    return load_model(folder).fingerprint()


def stopping(at: int) -> Any:
    """Interrupt a training after some steps."""

    def interrupt(done: int, *_: Any) -> None:
        if done >= at:
            raise KeyboardInterrupt

    return interrupt


def test_training_learns_and_reports(tmp_path: Path) -> None:
    told: list[tuple[int, int, float, float]] = []
    recipe = ClassTuning(epochs=4, batch_size=50, learning_rate=1e-2, flip=False, colour=0.0)
    bench = load_benchmark("digits-c")
    about = fine_tune(
        bench, TinyCNN(width=8), tmp_path / "out", recipe, device="cpu", on_progress=lambda *a: told.append(a)
    )
    assert [(done, steps) for done, steps, _, _ in told] == [(20, 80), (40, 80), (60, 80), (80, 80)]
    assert told[-1][2] < told[0][2]
    assert told[-1][3] < told[0][3]
    assert about["clean_error"] < 75  # chance is 90
    stored = json.loads((tmp_path / "out" / "training.json").read_text())
    assert {**about, "checksums": stored["checksums"]} == stored
    model, test = load_model(tmp_path / "out"), bench.test()
    with torch.no_grad():
        wrong = model(model.prepare(to_float(test.images))).logits.argmax(1) != test.labels
    assert about["clean_error"] == pytest.approx(100 * wrong.float().mean().item())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing of the work is left


def test_a_stopped_training_ends_as_an_undisturbed_one(start: Path, tmp_path: Path) -> None:
    bench = load_benchmark("digits-c")
    torch.manual_seed(1)
    undisturbed = fine_tune(bench, start, tmp_path / "whole", SHORT, device="cpu")
    torch.manual_seed(2)  # the global generator plays no part
    before = torch.get_rng_state()
    for at in (5, 9):
        with pytest.raises(KeyboardInterrupt):
            fine_tune(bench, start, tmp_path / "cut", SHORT, device="cpu", on_progress=stopping(at), save_every=0.0)
        assert not (tmp_path / "cut").exists()
    assert torch.equal(torch.get_rng_state(), before)
    found = fine_tune(bench, start, tmp_path / "cut", SHORT, device="cpu")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert {**found, "seconds": 0} == {**undisturbed, "seconds": 0}


SCRIPT = """
import sys
from testdg.data.benchmarks import load_benchmark
from testdg.runs.training.fine_tune import fine_tune
from testdg.runs.training.recipe import ClassTuning
recipe = ClassTuning(epochs=20, images=96, batch_size=16, learning_rate=1e-3, flip=False)
fine_tune(load_benchmark("digits-c"), sys.argv[1], sys.argv[2], recipe, device="cpu", save_every=0.0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_training_resumes(start: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(start), str(tmp_path / "killed")]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    state = tmp_path / "killed.training" / "state"
    while process.poll() is None:
        if state.exists():
            process.send_signal(signal.SIGKILL)
        time.sleep(0.001)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()
    recipe = ClassTuning(epochs=20, images=96, batch_size=16, learning_rate=1e-3, flip=False)
    for name in ("killed", "whole"):
        fine_tune(load_benchmark("digits-c"), start, tmp_path / name, recipe, device="cpu")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


def test_training_with_dropout_is_repeatable(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        hidden_dropout_prob=0.3, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = load_model(transformers.ViTForImageClassification(config))
    bench = load_benchmark("digits-c")
    with pytest.raises(KeyboardInterrupt):
        fine_tune(bench, model, tmp_path / "a", SHORT, device="cpu", on_progress=stopping(7), save_every=0.0)
    for name in ("a", "b"):
        fine_tune(bench, model, tmp_path / name, SHORT, device="cpu")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    again = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "a")
    assert again.config.id2label[9] == "9"
    assert model.classes == 3  # what was given stays as it was


def test_a_complete_training_is_read_back(start: Path, tmp_path: Path) -> None:
    bench, told = load_benchmark("digits-c"), []
    first = fine_tune(bench, start, tmp_path / "out", SHORT, device="cpu")
    again = fine_tune(bench, start, tmp_path / "out", SHORT, device="cpu", on_progress=lambda *a: told.append(a))
    assert again == first
    assert told == []


def test_the_folder_of_another_training_is_refused(start: Path, tmp_path: Path) -> None:
    bench, other = load_benchmark("digits-c"), ClassTuning(**{**vars(SHORT), "seed": 3})
    with pytest.raises(KeyboardInterrupt):
        fine_tune(bench, start, tmp_path / "out", SHORT, device="cpu", on_progress=stopping(5), save_every=0.0)
    with refused("other-training", tmp_path / "out.training", "seed 0", 3):
        fine_tune(bench, start, tmp_path / "out", other, device="cpu")
    fine_tune(bench, start, tmp_path / "out", SHORT, device="cpu")
    longer = ClassTuning(**{**vars(SHORT), "epochs": 9})
    with refused("other-training", tmp_path / "out", "epochs 2", 9):
        fine_tune(bench, start, tmp_path / "out", longer, device="cpu")


def test_a_folder_with_something_else_is_left_alone(start: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with refused("folder-exists", out, "--out"):
            fine_tune(load_benchmark("digits-c"), start, out, SHORT, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with refused("cannot-write", tmp_path / "notes.txt"):
        fine_tune(load_benchmark("digits-c"), start, tmp_path / "notes.txt" / "out", SHORT, device="cpu")


def test_a_damaged_state_is_named(start: Path, tmp_path: Path) -> None:
    bench = load_benchmark("digits-c")
    with pytest.raises(KeyboardInterrupt):
        fine_tune(bench, start, tmp_path / "out", SHORT, device="cpu", on_progress=stopping(5), save_every=0.0)
    (tmp_path / "out.training" / "state" / "state.safetensors").write_bytes(b"short")
    with refused("damaged-state", f"delete {tmp_path / 'out.training'}"):
        fine_tune(bench, start, tmp_path / "out", SHORT, device="cpu")
    (tmp_path / "out").mkdir()
    for content in ("{", "{}", "[]"):
        (tmp_path / "out" / "training.json").write_text(content)
        with refused("damaged-folder", tmp_path / "out" / "training.json", "--out"):
            fine_tune(bench, start, tmp_path / "out", SHORT, device="cpu")


def test_a_loss_that_explodes_ends_the_training(tmp_path: Path) -> None:
    model = load_model(TinyViT(patch=8, width=16, depth=1, heads=2))
    with torch.no_grad():
        model.network.get_parameter("head.bias").fill_(float("inf"))
    with refused("diverged", "nan", "12 steps", "--learning-rate", 0.001):
        fine_tune(load_benchmark("digits-c"), model, tmp_path / "out", SHORT, device="cpu")
    assert not (tmp_path / "out").exists()


def test_bf16_trains_with_full_weights(start: Path, tmp_path: Path) -> None:
    recipe = ClassTuning(**{**vars(SHORT), "precision": "bf16"})
    fine_tune(load_benchmark("digits-c"), start, tmp_path / "half", recipe, device="cpu")
    fine_tune(load_benchmark("digits-c"), start, tmp_path / "full", SHORT, device="cpu")
    half, full = load_model(tmp_path / "half"), load_model(tmp_path / "full")
    assert half.fingerprint() != full.fingerprint()
    for one, other in zip(half.parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=0.02, rtol=0.1)


def test_starting_models(start: Path) -> None:
    bench = load_benchmark("digits-c")
    assert starting_model(bench, "tiny").classes == 10
    assert starting_model(bench, "tiny", 16).preprocessing.input_size == (16, 16)
    assert starting_model(bench, "tiny", seed=1).fingerprint() != starting_model(bench, "tiny").fingerprint()
    assert starting_model(bench, start, 48).preprocessing.input_size == (48, 48)
    with refused("image-size", 4, 30):
        starting_model(bench, "tiny", 30)
    config = transformers.SegformerConfig(hidden_sizes=[8] * 4, depths=[1] * 4, num_attention_heads=[1] * 4)
    with refused("wrong-task", "segmentation", "digits-c"):
        starting_model(bench, transformers.SegformerForSemanticSegmentation(config))
    with refused("wrong-task", "segformer-b0", "digits-c"):
        starting_model(bench, "segformer-b0")


def test_a_module_of_the_users_own_is_trained_and_read_back(tmp_path: Path) -> None:
    def network(classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, classes))

    sized = Preprocessing((32, 32))
    about = fine_tune(load_benchmark("digits-c"), load_model(network(3), preprocessing=sized), tmp_path / "out", SHORT)
    model = load_model(tmp_path / "out", module=network(10))
    scores = clean_scores(model, load_benchmark("digits-c").test(), [str(k) for k in range(10)])
    assert scores["clean_error"] == about["clean_error"] < 90
    assert model.preprocessing == sized


def test_the_clean_error_counts_short_last_batches() -> None:
    model, test = load_model(TinyViT(patch=8, width=16, depth=1, heads=2)), load_benchmark("digits-c").test()
    assert isinstance(model, VisionModel)
    with torch.no_grad():
        model.network.get_parameter("head.weight").zero_()
        model.network.get_parameter("head.bias").copy_(nn.functional.one_hot(torch.tensor(3), 10))
    found = clean_scores(model, test, [])["clean_error"]
    assert found == pytest.approx(100 * (test.labels != 3).float().mean().item())
