import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.commands import refuses
from testdg.cli.app import execute
from testdg.methods.tent import Tent, TentSettings

SMALL = ["--images", "6", "--domains", "fog,contrast", "--device", "cpu"]


@pytest.fixture
def arguments(model: Path, tmp_path: Path) -> list[str]:
    return ["run", "--model", str(model), "--out", str(tmp_path / "runs"), "--method", "tent", *SMALL]


def test_run_shows_protocol_table_and_figure(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert "benchmark  digits-c, continual: 2 domains in order, severity 5" in lines
    table = lines.index(next(line for line in lines if line.startswith("error, %")))
    assert lines[table].split() == ["error,", "%", "Source", "TENT", "gain"]
    assert [line.split()[0] for line in lines[table + 1 : table + 4]] == ["fog", "contrast", "mean"]
    assert lines[table + 5].split() == ["mean", "Source", "TENT", "gain"]
    assert [line.split()[0] for line in lines[table + 6 : table + 9]] == ["early", "NLL", "ECE,"]
    assert shown.index("benchmark  digits-c") < shown.index("error, %")
    (figure,) = (tmp_path / "runs").glob("digits-c-tent-*/figure.png")
    assert f"figure  {figure}" in lines
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "runs").glob("digits-c-source-*"))) == 1


def test_json_is_the_result_alone(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (stored,) = (tmp_path / "runs").glob("digits-c-tent-*/result.json")
    assert found == {k: v for k, v in json.loads(stored.read_text()).items() if k not in ("checksum", "events")}
    assert found["method"]["name"] == "tent"


def test_held_out_and_precision(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    domains = "fog,contrast,snow,frost,pixelate,brightness"
    assert execute([*arguments, "--protocol", "held-out", "--domains", domains, "--precision", "bf16"]) == 0
    shown = capsys.readouterr().out
    assert "mean (held out)" in shown
    assert "bf16 on cpu" in shown


PRESET = Tent.presets["digits-c"]["learning_rate"]


@pytest.mark.parametrize(
    ("options", "settings", "tuning"),
    [
        ("", {"learning_rate": PRESET, "seed": 0}, "the method's preset for digits-c"),
        ("--preset none", {"learning_rate": TentSettings().learning_rate}, "the method's defaults"),
        (
            "--seed 5 --set steps=2 --set optimizer=sgd",
            {"seed": 5, "steps": 2, "optimizer": "sgd", "learning_rate": PRESET},
            "the method's preset for digits-c; chosen by the user: optimizer, steps",
        ),
        (
            "--preset imagenet-c --set learning_rate=0.5",
            {"optimizer": "sgd", "learning_rate": 0.5},
            "the method's preset for imagenet-c; chosen by the user: learning_rate",
        ),
    ],
)
def test_settings_are_those_of_the_preset_and_the_user(
    options: str, settings: dict[str, Any], tuning: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([*arguments, *options.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert settings.items() <= found["method"]["settings"].items()
    assert found["protocol"]["tuning"] == tuning


@pytest.mark.parametrize(
    ("protocol", "first_rows", "words"),
    [
        ("gradual", ["fog", "contrast", "mean"], "gradual: 2 domains in order 0, severity 1 to 5 and back"),
        ("cyclic,rounds=2", ["round 1", "round 2", "mean"], "cyclic: 2 domains in order, 2 rounds, severity 5"),
        ("mixed,seed=3", ["fog", "contrast", "mean"], "batches of 20, domains mixed (seed 3), reset once"),
        ("dirichlet", ["fog", "contrast", "mean"], "classes bunched (Dirichlet 0.1, seed 0)"),
        ("continual,resets=domain", ["fog", "contrast", "mean"], "reset at every domain"),
    ],
)
def test_every_protocol_has_its_table_and_figure(
    arguments: list[str], capsys: pytest.CaptureFixture[str], protocol: str, first_rows: list[str], words: str
) -> None:
    assert execute([*arguments, "--protocol", protocol]) == 0
    shown = capsys.readouterr().out
    assert words in shown
    if protocol.startswith("cyclic"):  # a line for every visit
        lines = [line.rpartition("  ")[0].strip() for line in shown.splitlines()[1:5]]
        assert lines == ["fog, round 1", "contrast, round 1", "fog, round 2", "contrast, round 2"]
    table = shown[shown.index("error, %") :].splitlines()
    assert [line.partition("  ")[0] for line in table[1:4]] == first_rows
    assert Path(shown.splitlines()[-1].split()[-1]).read_bytes().startswith(b"\x89PNG")


def test_all_orders_give_mean_and_deviation(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--protocol", "orders"]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("mean error, %") :].splitlines()
    assert [line.partition("  ")[0] for line in table[1:13]] == [f"order {k}" for k in range(10)] + [
        "mean",
        "deviation",
    ]
    assert execute([*arguments, "--protocol", "orders", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    errors = [result["mean_error"] for result in found["orders"]]
    assert len(errors) == 10
    assert found["mean_error"] == pytest.approx(sum(errors) / 10)
    assert found["deviation"] == pytest.approx((sum((e - sum(errors) / 10) ** 2 for e in errors) / 9) ** 0.5)


def test_a_complete_run_is_read_back(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    execute([*arguments, "--json"])
    first = capsys.readouterr().out
    assert execute([*arguments, "--json"]) == 0
    assert capsys.readouterr().out == first  # seconds included: nothing was computed again


def test_a_damaged_run_folder_is_named(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(arguments)
    (result,) = (tmp_path / "runs").glob("digits-c-tent-*/result.json")
    result.write_text("{")
    refuses(capsys, arguments, result)


def test_an_interrupt_has_code_130_and_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("testdg.methods.tent.Tent.step", interrupt)
    assert execute(arguments) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_the_live_table_of_a_terminal(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert execute(arguments) == 0
    shown = capsys.readouterr().out
    assert "━" in shown
    assert "figure" in shown


BEFORE_TORCH = """
import os, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.exit(f"{os.environ.get('OMP_WAIT_POLICY')} {os.environ.get('ONEDNN_MAX_CPU_ISA')}")
sys.meta_path.insert(0, Watch())
from testdg.cli.app import execute
execute(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ([], "None"),
        (["--precision", "bf16"], "AVX512_CORE_BF16"),
        (["--set", "precision=bf16"], "AVX512_CORE_BF16"),
    ],
)
def test_the_environment_is_set_before_torch_is_imported(options: list[str], limit: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("ONEDNN_MAX_CPU_ISA", "OMP_WAIT_POLICY")}
    start = [sys.executable, "-c", BEFORE_TORCH, "run", *options]
    done = subprocess.run(start, capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == f"passive {limit}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_refused() -> None:
    with open("/dev/full", "w") as full:
        start = [sys.executable, "-m", "testdg", "methods", "--json"]
        done = subprocess.run(start, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in done.stderr


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "testdg", *arguments]
    return subprocess.run(start, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_the_command_itself(arguments: list[str]) -> None:
    good = command(*arguments, "--json")
    assert good.returncode == 0
    assert json.loads(good.stdout)["protocol"]["benchmark"] == "digits-c"
    bad = command("run", "--method", "tnet")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "'tnet'" in bad.stderr
