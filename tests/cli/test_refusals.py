"""Mistakes in commands on benchmarks: one sentence names the values, and nothing is computed or written."""

import shlex
from pathlib import Path

import pytest

from support.commands import refuses

RUN = {
    "--method tentt": ("'tentt'", "'tent'"),
    "--method tent,t3a --set steps=2": ("steps=2", "tent, t3a"),
    "--method tent,t3a --set eata.margin=0.4": ("eata.margin=0.4", "tent, t3a"),
    "--method tent,t3a --set tent.precision=bf16": ("precision",),
    "--method ,": ("--method",),
    "--method source --guard": ("--guard", "source"),
    "--method tent --source empty": ("--source",),
    "--benchmark digit-c": ("'digit-c'", "'digits-c'"),
    "--benchmark cifar10-c": ("cifar10-c", "data folder"),
    "--data nowhere": ("nowhere",),
    "--model empty": ("empty",),
    "--set learning_rat=1": ("'learning_rat'", "'learning_rate'"),
    "--set learning_rate=fast": ("learning_rate", "number", "'fast'"),
    "--set learning_rate=-1": ("learning_rate", "at least 0", "-1.0"),
    "--set learning_rate=inf": ("learning_rate", "inf"),
    "--set steps": ("key=value", "'steps'"),
    "--set seed=3": ("--seed 3", "seeds = 3"),
    "--set cotta.steps=3": ("cotta.steps=3", "tent.steps=3"),
    f"--seed {'9' * 30}": ("--seed", 2**32 - 1, "got 999"),
    "--seed -1": ("--seed", "'-1'"),
    "--preset digit-c": ("preset of tent", "'digit-c'", "'digits-c'"),
    "--domains ,": ("--domains", "nothing"),
    "--domains fogg": ("'fogg'", "'fog'"),
    "--batch-size 0": ("--batch-size", "at least 1", "got 0"),
    "--images 0": ("--images", "at least 1", "got 0"),
    "--severity 9": ("--severity", "1 to 5", "got 9"),
    "--protocol held-out": ("held-out", 5, 2),
    "--protocol gradul": ("'gradul'", "'gradual'"),
    "--protocol cyclic,rounds=0": ("cyclic", "rounds", "1 to 10000", "got 0"),
    "--protocol none.toml": ("none.toml",),
    "--protocol own.toml": ("own", "--domains"),
    "--protocol gradual --severity 3": ("gradual", "--severity"),
    "--protocol order-1 --domains spatter": ("order 1", "'spatter'"),
    "--protocol cyclic,mixed": ("one protocol", "testdg bench"),
    "--precision fp8": ("--precision", "fp32 or bf16", "'fp8'"),
    "--preprocessing papper": ("--preprocessing", "model or paper", "'papper'"),
    "--preprocessing paper": ("digits-c", "--preprocessing paper"),
    "--subset first:1": ("digits-c", "subset"),
    "--device gpu": ("--device", "auto, cpu, cuda or mps", "'gpu'"),
    "--modell x": ("--modell",),
}
BENCH = {
    "": ("bench", "--methods"),
    "--methods tent,tentt": ("the grid", "'tentt'", "'tent'"),
    "--methods tent --set tent.stepz=1": ("the grid", "tent", "'stepz'", "'steps'"),
    "--methods tent --out file": ("file", "--out"),
    "--methods tent --seeds 0,x": ("the grid", "seed", "'x'"),
    "--methods tent --jobs 0": ("jobs", "got 0"),
    "--methods tent --engine rya": ("'rya'", "'ray'"),
    "--methods tent --address x:1": ("--address", "--engine ray"),
    "--methods tent --gpus-per-cell 1": ("--gpus-per-cell", "--engine ray"),
    "--methods tent --out no://runs": ("no://runs",),
    "--methods tent --track x": ("'x'", "tensorboard"),
    "--methods tent --csv none/x.csv": ("none/x.csv",),
    "none.toml": ("none.toml",),
    "x.toml --methods tent": ("x.toml", "--methods", "--set"),
    "--methods tent --benchmarks a,b": ("the grid has 2 mistakes", "'a'", "'b'"),
    "--methods tent --model empty": ("the grid", "weights"),
}
ABLATE = {
    "compnents": ("'compnents'", "'components'"),
    "queue --set queue_length=3": ("ablation queue", "queue_length", "--set"),
    "queue --set thresholt=3": ("ablation queue", "testdg", "'thresholt'", "'threshold'"),
}
ANALYZE = {
    "gpa": ("'gpa'", "'gap'"),
    "gap --methods tent": ("tent", "--space features"),
    "gap --space feature": ("'feature'", "'features'"),
    "drift --methods tent": ("drift", "tent"),
    "drift --set testdg.threshold=1": ("threshold",),
    "attention": ("vit", "attention maps"),
    "attention --methods tent": ("attention", "'tent'", "--methods"),
    "gap --seeds 0,1": ("gap", "got 2"),
    "stream --protocol orders": ("stream", "protocol"),
    "stream --jobs 0": ("jobs", "got 0"),
    "stream --methods tnet": ("analysis stream", "'tnet'", "'tent'"),
    "gap --figure x.jpg": ("x.jpg", ".png, .pdf or .svg"),
    "gap --figure none/x.png": ("none/x.png",),
    "gap --out file": ("file", "--out"),
    "gap --runs file": ("file", "--runs"),
    "gap --set tent.steps=2": ("tent.steps=2", "testdg"),
    "overview": ("overview", "--model, --device, --images"),
}
TUNE = {
    "tent --rates 1e-3,fast": ("--rates", "1e-3,fast"),
    "tent --rates 0": ("--rates", "'0'"),
    "tentt": ("'tentt'", "'tent'"),
    "svdp": ("svdp", "segmentation", "digits-c", "classification"),
    "tent --set learning_rate=0.1": ("learning_rate", "tent", "--set"),
    "tent:come --set loss=hard": ("loss", "tent:come", "--set"),
    "tent --write nowhere/t.toml": ("nowhere/t.toml",),
}
LEADERBOARD = {
    "tentt": ("'tentt'", "'tent'"),
    "tent --benchmark digits-c,streets": ("one benchmark", "--benchmark"),
    "tent --streams continual,sortd": ("'sortd'", "'sorted'"),
    "tent --streams 'five times longer'": ("five times longer", "continual"),
    "--show nowhere": ("nowhere/runs.jsonl",),
}
TRAIN = {
    "--benchmark digit-c": ("'digit-c'", "'digits-c'"),
    "--model ./nowhere": ("./nowhere",),
    "--model x.safetensors": ("x.safetensors",),
    "--epochs 0": ("epochs", "got 0"),
    "--learning-rate -1": ("learning_rate", "-1.0"),
    "--precision fp8": ("precision", "'fp8'"),
    "--model tiny --image-size 30": ("multiple of 4", "got 30"),
    "--device gpu": ("device", "'gpu'"),
}
COMMANDS = {
    "run --method tent": RUN,
    "bench": BENCH,
    "ablate": ABLATE,
    "analyze": ANALYZE,
    "tune": TUNE,
    "leaderboard": LEADERBOARD,
    "train --benchmark digits-c --out out": TRAIN,
}
CASES = [(command, more, values) for command, cases in COMMANDS.items() for more, values in cases.items()]


@pytest.mark.parametrize(("command", "more", "values"), CASES, ids=[f"{case[0]} {case[1][:60]}" for case in CASES])
def test_mistakes_are_refused_before_anything_runs(
    command: str, more: str, values: tuple[object, ...], model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "own.toml").write_text('order = ["fogg"]')
    before = sorted(tmp_path.iterdir())
    small = ["--model", str(model), "--device", "cpu", "--images", "6"]
    if not command.startswith("train"):
        small += ["--domains", "fog,contrast"]
    refuses(capsys, [*command.split(), *small, *shlex.split(more)], *values)
    assert sorted(tmp_path.iterdir()) == before


def test_tune_needs_domains_on_a_benchmark_without_extra_corruptions(capsys: pytest.CaptureFixture[str]) -> None:
    refuses(capsys, ["tune", "tent", "--benchmark", "streets"], "streets", "--domains")
