import json
from pathlib import Path
from typing import Any

import pytest

from support.runs import SMALL
from testdg.data.benchmarks import load_benchmark
from testdg.models import VisionModel
from testdg.runs import differences, read_result, run


def test_a_result_carries_everything_that_its_number_depends_on(model: VisionModel, tmp_path: Path) -> None:
    result = run("digits-c", "tent", model=model, out=tmp_path, settings={"seed": 3, "learning_rate": 0.5}, **SMALL)
    bench = load_benchmark("digits-c", images=10, domains=["fog", "contrast"]).describe()
    assert result.record == {
        "kind": "continual",
        "benchmark": "digits-c",
        "task": "classification",
        "data": "generated on the fly, seed 0, frost procedural",
        "data_fingerprint": bench["data_fingerprint"],
        "order": "the benchmark's",
        "domains": ["fog", "contrast"],
        "held_out": [],
        "severity": 5,
        "rounds": 1,
        "images_per_domain": 10,
        "sampling": "file",
        "concentration": "none",
        "sampling_seed": "none",
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
    assert all(len(stored.pop(key)) == 32 for key in ("checksum", "events"))
    assert list(stored) == [
        "protocol", "method", "domains", "mean_error", "means", "held_out", "held_out_mean", "held_out_means",
        "skipped", "skipped_updates", "seconds", "versions",
    ]  # fmt: skip
    assert stored == result.to_dict()
    fields = {"name", "error", "images", "severity", "round", "early_error", "nll", "ece", "miou", "class_iou"}
    assert [set(d) for d in stored["domains"]] == [fields] * 2
    for key in ("error", "early_error", "nll", "ece"):
        assert stored["means"][key] == pytest.approx(sum(d[key] for d in stored["domains"]) / 2)
    assert stored["mean_error"] == pytest.approx(sum(d["error"] for d in stored["domains"]) / 2)
    assert stored["held_out"] is None
    assert set(stored["versions"]) == {"testdg", "torch", "numpy", "python"}


@pytest.mark.parametrize(
    ("base", "change"),
    [
        *(("continual", {"protocol": name}) for name in ("mixed", "dirichlet", "cyclic", "gradual")),
        ("continual", {"protocol": "continual,resets=domain"}),
        ("mixed", {"protocol": "mixed,seed=1"}),
        ("dirichlet", {"protocol": "dirichlet,concentration=0.2"}),
        ("continual", {"batch_size": 5}),
        ("continual", {"images": 9}),
        ("continual", {"severity": 4}),
        ("continual", {"domains": ["contrast", "fog"]}),
    ],
)
def test_another_protocol_is_another_run_that_cannot_be_compared(
    model: VisionModel, tmp_path: Path, base: str, change: dict[str, Any]
) -> None:
    first = run("digits-c", "source", model=model, out=tmp_path, **{**SMALL, "protocol": base})
    second = run("digits-c", "source", model=model, out=tmp_path, **{**SMALL, "protocol": base, **change})
    assert first.folder != second.folder
    assert differences(first, second)


def test_another_seed_is_another_run_that_can_be_compared(model: VisionModel, tmp_path: Path) -> None:
    first, second = (
        run("digits-c", "tent", model=model, out=tmp_path, settings={"seed": seed}, **SMALL) for seed in (0, 1)
    )
    assert first.folder != second.folder
    assert not differences(first, second)


def test_every_visit_has_scores_of_its_own(model: VisionModel, tmp_path: Path) -> None:
    result = run("digits-c", "tent", model=model, out=tmp_path, protocol="gradual", **SMALL)
    assert [d.name for d in result.domains] == ["fog"] * 5 + ["contrast"] * 9
    assert [d.severity for d in result.domains] == [5, 4, 3, 2, 1, 1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert result.mean_score == pytest.approx(sum(d.error for d in result.domains) / 14)
    cyclic = run("digits-c", "tent", model=model, out=tmp_path, protocol="cyclic,rounds=2", **SMALL)
    assert [(d.name, d.round) for d in cyclic.domains] == [("fog", 1), ("contrast", 1), ("fog", 2), ("contrast", 2)]


@pytest.mark.parametrize("protocol", ["continual", "mixed", "dirichlet", "cyclic,resets=domain"])
def test_source_has_the_same_errors_in_every_order_and_at_every_batch_size(
    model: VisionModel, tmp_path: Path, protocol: str
) -> None:
    def errors(protocol: str, batch_size: int) -> list[tuple[str, float]]:
        values = {**SMALL, "batch_size": batch_size, "protocol": protocol}
        found = run("digits-c", "source", model=model, out=tmp_path, **values)
        return [(d.name, d.error) for d in found.domains[:2]]

    assert errors(protocol, 1) == errors("continual", 10)


def test_images_that_were_left_out_are_counted(
    model: VisionModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = load_benchmark("digits-c", images=10, domains=["fog"])
    monkeypatch.setattr(benchmark, "unreadable", lambda: ["a.JPEG", "b.JPEG"])
    result = run(benchmark, "source", model=model, out=tmp_path)
    assert result.skipped == 2
    assert read_result(result.folder).skipped == 2
