import json
from pathlib import Path

import pytest

from testdg.data.benchmarks import load_benchmark
from testdg.errors import UserError
from testdg.evaluation import run
from testdg.evaluation.protocol import split_domains
from testdg.models import VisionModel

SMALL = {"images": 10, "domains": ["fog", "contrast"], "batch_size": 4, "device": "cpu"}


def test_a_result_carries_everything_that_its_number_depends_on(model: VisionModel, tmp_path: Path) -> None:
    result = run("digits-c", "tent", model=model, out=tmp_path, settings={"seed": 3, "learning_rate": 0.5}, **SMALL)
    bench = load_benchmark("digits-c", images=10, domains=["fog", "contrast"]).describe()
    assert result.protocol == {
        "kind": "continual",
        "benchmark": "digits-c",
        "data": "generated on the fly, seed 0, frost procedural",
        "data_fingerprint": bench["data_fingerprint"],
        "domains": ["fog", "contrast"],
        "held_out": [],
        "severity": 5,
        "images_per_domain": 10,
        "batch_size": 4,
        "resets": "once at the start",
        "model": "random-vit",
        "model_fingerprint": model.fingerprint(),
        "preprocessing": {
            "size": [32, 32],
            "crop": "none",
            "resample": "bilinear",
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
        },
        "precision": "fp32",
        "device": "cpu",
        "seed": 3,
        "tuning": "the method's preset for digits-c; chosen by the user: learning_rate",
    }
    assert result.method["settings"]["learning_rate"] == 0.5


def test_the_result_file_has_the_documented_shape(model: VisionModel, tmp_path: Path) -> None:
    result = run("digits-c", "source", model=model, out=tmp_path, **SMALL)
    stored = json.loads((result.folder / "result.json").read_text())
    assert list(stored) == [
        "protocol", "method", "domains", "mean_error", "held_out", "held_out_mean", "seconds", "versions",
    ]  # fmt: skip
    assert stored == result.to_dict()
    assert [set(d) for d in stored["domains"]] == [{"name", "error", "images"}] * 2
    assert stored["mean_error"] == pytest.approx(sum(d["error"] for d in stored["domains"]) / 2)
    assert stored["held_out"] is None
    assert set(stored["versions"]) == {"testdg", "torch", "python"}


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 5}, {"images": 9}, {"severity": 4}, {"settings": {"seed": 1}}, {"domains": ["contrast", "fog"]}],
)
def test_another_protocol_is_another_run(model: VisionModel, tmp_path: Path, change: dict[str, object]) -> None:
    first = run("digits-c", "tent", model=model, out=tmp_path, **SMALL)
    second = run("digits-c", "tent", model=model, out=tmp_path, **{**SMALL, **change})
    assert first.folder != second.folder


def test_held_out_keeps_the_last_five_domains() -> None:
    names = [f"d{i}" for i in range(15)]
    assert split_domains("held-out", names) == (tuple(names[:10]), tuple(names[10:]))
    assert split_domains("continual", names) == (tuple(names), ())
    with pytest.raises(UserError, match="held-out tests on the last 5 domains; the stream has only 5"):
        split_domains("held-out", names[:5])
    with pytest.raises(UserError, match="unknown protocol 'heldout'; did you mean 'held-out'"):
        split_domains("heldout", names)
