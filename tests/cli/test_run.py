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


def test_preset_set_and_seed_reach_the_method(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--json", "--seed", "5", "--set", "steps=2", "--set", "optimizer=sgd"]) == 0
    found = json.loads(capsys.readouterr().out)
    settings = found["method"]["settings"]
    assert (settings["seed"], settings["steps"], settings["optimizer"]) == (5, 2, "sgd")
    assert settings["learning_rate"] == Tent.presets["digits-c"]["learning_rate"]
    assert found["protocol"]["tuning"] == "the method's preset for digits-c; chosen by the user: optimizer, steps"


def test_source_alone_has_one_column(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--method", "source"]) == 0
    assert "error, %  Source" in capsys.readouterr().out


def found_settings(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    assert execute([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return found["method"]["settings"], found["protocol"]["tuning"]


def test_an_embedded_benchmark_applies_its_own_preset(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    settings, tuning = found_settings(arguments, capsys)
    assert settings["learning_rate"] == Tent.presets["digits-c"]["learning_rate"]
    assert tuning == "the method's preset for digits-c"
    settings, tuning = found_settings([*arguments, "--preset", "none"], capsys)
    assert settings["learning_rate"] == TentSettings().learning_rate
    assert tuning == "the method's defaults"


def test_a_preset_is_applied_on_request_and_settings_win(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [*arguments, "--preset", "imagenet-c", "--set", "learning_rate=0.5"]
    settings, tuning = found_settings(chosen, capsys)
    assert (settings["optimizer"], settings["learning_rate"]) == ("sgd", 0.5)
    assert tuning == "the method's preset for imagenet-c; chosen by the user: learning_rate"


def test_held_out_and_precision(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    domains = "fog,contrast,snow,frost,pixelate,brightness"
    assert execute([*arguments, "--protocol", "held-out", "--domains", domains, "--precision", "bf16"]) == 0
    shown = capsys.readouterr().out
    assert "mean (held out)" in shown
    assert "bf16 on cpu" in shown


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


def test_every_visit_has_a_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*arguments, "--protocol", "cyclic,rounds=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    visits = [line.rpartition("  ")[0].strip() for line in lines[1:5]]
    assert visits == ["fog, round 1", "contrast, round 1", "fog, round 2", "contrast, round 2"]


def test_a_complete_run_is_read_back(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    execute([*arguments, "--json"])
    first = capsys.readouterr().out
    assert execute([*arguments, "--json"]) == 0
    assert capsys.readouterr().out == first  # seconds included: nothing was computed again


@pytest.mark.parametrize(
    ("more", "values"),
    [
        (["--method", "tentt"], ("'tentt'", "'tent'")),
        (["--benchmark", "digit-c"], ("'digit-c'", "'digits-c'")),
        (["--benchmark", "cifar10-c"], ("cifar10-c", "data folder")),
        (["--data", "nowhere"], ("nowhere",)),
        (["--set", "learning_rat=1"], ("'learning_rat'", "'learning_rate'")),
        (["--set", "learning_rate=fast"], ("learning_rate", "number", "'fast'")),
        (["--set", "learning_rate=-1"], ("learning_rate", "at least 0", "-1.0")),
        (["--set", "learning_rate=inf"], ("learning_rate", "inf")),
        (["--set", "steps"], ("key=value", "'steps'")),
        (["--set", "seed=3"], ("--seed 3", "seeds = 3")),
        (["--set", "cotta.steps=3"], ("cotta.steps=3", "tent.steps=3")),
        (["--seed", "9" * 30], ("--seed", 2**32 - 1, "got 999")),
        (["--seed", "-1"], ("--seed", "'-1'")),
        (["--preset", "digit-c"], ("preset of tent", "'digit-c'", "'digits-c'")),
        (["--domains", ","], ("--domains", "nothing")),
        (["--domains", "fogg"], ("'fogg'", "'fog'")),
        (["--batch-size", "0"], ("--batch-size", "at least 1", "got 0")),
        (["--images", "0"], ("--images", "at least 1", "got 0")),
        (["--severity", "9"], ("--severity", "1 to 5", "got 9")),
        (["--protocol", "held-out"], ("held-out", 5, 2)),
        (["--protocol", "gradul"], ("'gradul'", "'gradual'")),
        (["--protocol", "cyclic,rounds=0"], ("cyclic", "rounds", "1 to 10000", "got 0")),
        (["--protocol", "own.toml"], ("own.toml",)),
        (["--protocol", "gradual", "--severity", "3"], ("gradual", "--severity")),
        (["--protocol", "order-1", "--domains", "spatter"], ("order 1", "'spatter'")),
        (["--protocol", "cyclic,mixed"], ("one protocol", "testdg bench")),
        (["--precision", "fp8"], ("--precision", "fp32 or bf16", "'fp8'")),
        (["--device", "gpu"], ("--device", "auto, cpu, cuda or mps", "'gpu'")),
        (["--method", ","], ("--method",)),
        (["--method", "tent,t3a", "--set", "tent.precision=bf16"], ("precision",)),
        (["--modell", "x"], ("--modell",)),
    ],
)
def test_mistakes_are_refused(
    arguments: list[str], more: list[str], values: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(capsys, [*arguments, *more], *values)


def test_mistakes_are_refused_before_anything_is_computed(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.toml"
    own.write_text('order = ["fogg"]')
    for option in ("--set=steps=0", "--protocol=held-out", f"--protocol={own}", "--preset=x", "--precision=fp8"):
        assert refuses(capsys, [*arguments, option]).out == ""
    assert not (tmp_path / "runs").exists()


def test_a_model_folder_without_weights_is_named(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    refuses(capsys, [*arguments, "--model", tmp_path / "empty"], tmp_path / "empty")


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
