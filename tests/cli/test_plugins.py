"""Methods, benchmarks and models of a user, from a file or a package, in every command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = '''
from torch import Tensor, nn

from testdg.data.benchmarks import register as register_benchmark
from testdg.data.benchmarks.digits_c import DigitsC
from testdg.methods import Adapter, register
from testdg.models import TinyCNN, register_model


@register
class Mine(Adapter):
    """Predict, and learn nothing."""

    name = "mine"
    title = "Mine"
    citation = "an example"

    def step(self, images: Tensor) -> Tensor:
        return self.model(images).logits


@register
class Forgetful(Mine):
    """Predict something else every time."""

    name = "forgetful"
    title = "Forgetful"

    def build(self) -> None:
        self.calls = 0

    def step(self, images: Tensor) -> Tensor:
        self.calls += 1
        return super().step(images) + self.calls


@register_benchmark
class Few(DigitsC):
    """Digits under another name."""

    name = "few-digits"
    title = "Few digits"


@register_model("mynet")
def make() -> nn.Module:
    import torch

    torch.manual_seed(0)
    return TinyCNN(width=4)
'''


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which knows no plugin yet."""
    code = "import sys; from testdg.cli.app import execute; sys.exit(execute())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path]), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(PLUGIN)
    return tmp_path


def test_every_command_sees_a_plugin(plugin: Path) -> None:
    named = ("--plugin", "mine.py")
    listed = json.loads(command(plugin, "methods", "--json", *named).stdout)
    assert {"mine", "tent"} <= {entry["name"] for entry in listed}
    assert "few-digits" in command(plugin, *named, "benchmarks").stdout
    words = ["--benchmark", "few-digits", "--model", "mynet", "--domains", "fog", "--images", "20", "--device", "cpu"]
    found = json.loads(command(plugin, "run", "--plugin=mine.py", "--method", "mine", *words, "--json").stdout)
    assert (found["method"]["name"], found["protocol"]["benchmark"]) == ("mine", "few-digits")
    bench = command(plugin, "bench", *named, "--methods", "mine", *words, "--jobs", "2", "--out", "others")
    assert (bench.returncode, "Mine" in bench.stdout) == (0, True), bench.stderr


def test_a_plugin_imports_the_files_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside.py").write_text(PLUGIN)
    (tmp_path / "code" / "few.py").write_text("import beside\n")
    assert "few-digits" in command(tmp_path, "benchmarks", "--plugin", "code/few.py").stdout


def test_a_method_is_checked_by_one_command(plugin: Path) -> None:
    fine = command(plugin, "check-method", "mine", "--plugin", "mine.py")
    assert fine.returncode == 0, fine.stderr
    assert "laws hold" in fine.stdout
    assert "SegFormer           not adapted: mine is for classification" in fine.stdout
    broken = command(plugin, "check-method", "forgetful", "--plugin", "mine.py")
    assert broken.returncode == 1
    assert "broken: forgetful on TinyViT: " in broken.stdout


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--plugin", "nowhere.py"], "nowhere.py"),
        (["--plugin"], "--plugin"),
        (["--plugin", "bad.py"], "bad.py cannot be loaded: ZeroDivisionError"),
        (["--plugin", "twin.py"], "'tent'"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_refused(words: list[str], value: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    twin = PLUGIN.replace('name = "mine"', 'name = "tent"')
    (tmp_path / "twin.py").write_text("import testdg.methods.tent\n" + twin)
    ended = command(tmp_path, "methods", *words)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert value in ended.stderr


def test_installed_packages_are_found_by_their_entry_points(tmp_path: Path) -> None:
    (tmp_path / "own_package.py").write_text(PLUGIN)
    about = tmp_path / "own_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[testdg.methods]\nmine = own_package:Mine\ngone = own_package:Gone\n"
        "[testdg.benchmarks]\nfew = own_package:Few\n"
    )
    code = "from testdg.methods import methods; from testdg.data.benchmarks import benchmarks; "
    code += "print('mine' in methods(), 'few-digits' in benchmarks())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ended.stdout.split() == ["True", "True"], ended.stderr
    assert "plugin own_package:Gone cannot be loaded (AttributeError" in ended.stderr
