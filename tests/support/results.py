"""Results that no run computed."""

from pathlib import Path
from typing import Any

from testdg.runs import DomainResult, Result

RECORD: dict[str, Any] = {
    "kind": "continual", "benchmark": "digits-c", "task": "classification", "data": "generated",
    "data_fingerprint": "abc", "order": "the benchmark's", "domains": ["fog", "snow"], "held_out": [], "severity": 5,
    "rounds": 1, "images_per_domain": 3, "sampling": "file", "concentration": "none", "sampling_seed": "none",
    "batch_size": 4, "resets": "once at the start", "model": "vit", "model_fingerprint": "def",
    "preprocessing": {"size": 32, "crop": "none", "mean": [0.5], "std": [0.5]}, "precision": "fp32", "device": "cpu",
    "seed": 0, "tuning": "the method's defaults",
}  # fmt: skip


def make_result(
    method: str, scores: dict[str, float], folder: Path, tested: dict[str, float] | None = None, **changes: Any
) -> Result:
    """A result with a score for each domain and for each held-out domain; `changes` are made to the record."""
    held_out = list(tested or {})
    record = {**RECORD, "domains": list(scores), "held_out": held_out, **changes}
    key = {"classification": "error", "segmentation": "miou"}[record["task"]]
    visits, others = (
        [DomainResult(name, record["images_per_domain"], {key: score}, 5) for name, score in known.items()]
        for known in (scores, tested or {})
    )
    about = {"name": method, "settings": {"seed": record["seed"]}}
    return Result(record, about, visits, others or None, 2.0 + record["seed"], {}, folder)
