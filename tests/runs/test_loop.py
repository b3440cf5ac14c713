import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import Stream
from testdg.errors import UserError
from testdg.methods import adapt
from testdg.methods.source import Source
from testdg.models import VisionModel
from testdg.models.device import find_device
from testdg.runs import Observer, Protocol, Record, Result, run
from testdg.runs.loop import run_stream
from testdg.runs.scores import Classification

SIX = ["fog", "contrast", "snow", "brightness", "pixelate", "jpeg_compression"]


def stream(images: int = 10, batch_size: int = 4, domains: list[str] | None = None, **protocol: Any) -> Stream:
    benchmark = load_benchmark("digits-c", images=images, domains=domains or ["fog", "contrast"])
    return Protocol(**protocol).stream(benchmark, batch_size)


def evaluate(adapter: Any, batches: Stream, **more: Any) -> tuple[list[dict[str, Any]], list[int]]:
    events: list[dict[str, Any]] = []
    saved: list[int] = []
    run_stream(adapter, batches, Classification(), start=0, write=events.extend, save=saved.append, **more)
    return events, saved


def test_source_errors_are_those_of_the_model(model: VisionModel) -> None:
    batches = stream()
    events, saved = evaluate(adapt(model, "source"), batches)
    with torch.no_grad():
        wrong = [int((model(b.images).logits.argmax(1) != b.labels).sum()) for b in batches]
    assert [event["errors"] for event in events] == wrong
    assert [event["images"] for event in events] == [4, 4, 2] * 2
    assert [event["domain"] for event in events] == ["fog"] * 3 + ["contrast"] * 3
    assert saved == [6]


def test_a_batch_is_scored_with_the_prediction_made_before_its_update(model: VisionModel) -> None:
    batches = stream(images=4, domains=["fog"])
    events, _ = evaluate(adapt(model, "tent", learning_rate=10.0), batches)
    with torch.no_grad():
        before = int((model(batches[0].images).logits.argmax(1) != batches[0].labels).sum())
    assert events[0]["errors"] == before


def test_held_out_domains_are_predicted_and_teach_nothing(model: VisionModel) -> None:
    adapter, reference = (adapt(model, "tent", learning_rate=0.1) for _ in range(2))
    batches = stream(domains=SIX, held_out=5)
    events, _ = evaluate(adapter, batches)
    assert [event["phase"] for event in events] == ["adapt"] * 3 + ["held_out"] * 15
    for batch in batches.batches():
        if batch.learn:
            reference(batch.images)
    frozen = [int((reference.predict(b.images).argmax(1) != b.labels).sum()) for b in batches.batches(3)]
    assert [event["errors"] for event in events[3:]] == frozen
    assert all(torch.equal(a, b) for a, b in zip(adapter.parameters(), reference.parameters(), strict=True))


def test_held_out_errors_have_their_own_list(model: VisionModel, tmp_path: Path) -> None:
    result = run("digits-c", "tent", model=model, protocol="held-out", images=6, domains=SIX, out=tmp_path)
    assert [d.name for d in result.domains] == SIX[:1]
    assert result.held_out is not None
    assert [d.name for d in result.held_out] == SIX[1:]
    assert result.mean_score == result.domains[0].error
    assert result.held_out_score == pytest.approx(sum(d.error for d in result.held_out) / 5)


class Talkative(Source):
    """Tells something of every kind."""

    def step(self, images: Tensor) -> Tensor:
        self.diagnostics = {
            "change": torch.tensor(True),
            "confidence": torch.tensor(0.25),
            "count": torch.tensor(7),
            "lost": torch.tensor(float("nan")),
            "plain": 1.5,
            "errors": -1,  # writes over nothing
        }
        return super().step(images)


def test_what_the_adapter_tells_is_in_the_events(model: VisionModel) -> None:
    events, _ = evaluate(Talkative(model), stream(images=2, batch_size=2, domains=["fog"]))
    (part,) = events[0]["parts"]
    assert json.loads(json.dumps(events[0], allow_nan=False)) == {
        "batch": 0, "domain": "fog", "severity": 5, "round": 1, "phase": "adapt", "images": 2,
        "errors": part["errors"], "parts": [part],
        "diagnostics": {"change": True, "confidence": 0.25, "count": 7, "lost": None, "plain": 1.5, "errors": -1},
    }  # fmt: skip
    assert (part["segment"], part["images"], part["early"][1]) == (0, 2, 1)


def test_resets_start_every_domain_from_the_source(model: VisionModel) -> None:
    both = evaluate(adapt(model, "tent", learning_rate=0.1), stream(), resets=True)[0]
    alone = evaluate(adapt(model, "tent", learning_rate=0.1), stream(domains=["contrast"]))[0]
    keys = ("images", "errors", "diagnostics")
    assert [[e[k] for k in keys] for e in both[3:]] == [[e[k] for k in keys] for e in alone]
    continual = evaluate(adapt(model, "tent", learning_rate=0.1), stream())[0]
    assert [e["diagnostics"] for e in continual[3:]] != [e["diagnostics"] for e in both[3:]]


def test_a_mixed_batch_is_counted_for_each_of_its_domains(model: VisionModel) -> None:
    batches = stream(images=10, batch_size=5, domains=SIX, sampling="mixed")
    events, saved = evaluate(adapt(model, "source"), batches)
    assert saved == [12]
    for batch, event in zip(batches, events, strict=True):
        with torch.no_grad():
            wrong = model(batch.images).logits.argmax(1) != batch.labels
        counts = {(p["segment"], p["images"], p["errors"]) for p in event["parts"]}
        there = set(batch.segments.tolist())
        assert counts == {(s, int((batch.segments == s).sum()), int(wrong[batch.segments == s].sum())) for s in there}
        assert (event["domain"], event["errors"]) == ("mixed", int(wrong.sum()))


def test_the_adapter_sees_images_only(model: VisionModel) -> None:
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    adapter = adapt(model, "source")
    adapter.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    evaluate(adapter, stream())
    assert len(seen) == 6
    assert all(len(args) == 1 and isinstance(args[0], Tensor) and not kwargs for args, kwargs in seen)


class Listener(Observer):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def started(self, method: str, protocol: Record, batches: int, events: list[dict[str, Any]]) -> None:
        self.heard.append((f"started {method} {batches}", len(events)))

    def progress(self, events: list[dict[str, Any]]) -> None:
        self.heard.append(("progress", len(events)))

    def finished(self, result: Result) -> None:
        self.heard.append(("finished", len(result.domains)))


def test_an_observer_hears_of_everything_and_of_a_finished_run_at_once(model: VisionModel, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "model": model,
        "images": 10,
        "domains": ["fog", "snow"],
        "batch_size": 4,
        "out": tmp_path,
    }
    first, again = Listener(), Listener()
    run("digits-c", "source", observer=first, **options)
    assert first.heard == [("started source 6", 0), ("progress", 3), ("progress", 3), ("finished", 2)]
    run("digits-c", "source", observer=again, **options)
    assert again.heard == [("started source 6", 6), ("finished", 2)]


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(UserError, match="unknown device 'cudaa'; did you mean 'cuda'"):
        find_device("cudaa")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device 'cuda' is not available on this machine: use --device auto or cpu"):
            find_device("cuda")
