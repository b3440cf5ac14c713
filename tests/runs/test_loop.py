import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.errors import refused
from testdg.methods.source import Source
from testdg.models import VisionModel
from testdg.models.loading import find_device
from testdg.report.record import record_lines
from testdg.report.runs import check_result
from testdg.runs import Observer, Protocol, Result, run
from testdg.runs.events import Entry
from testdg.runs.loop import run_stream
from testdg.runs.observer import RunProgress
from testdg.runs.scores import Classification
from testdg.runs.session import RunSession, open_run
from testdg.spec import RunSpec

SIX = ["fog", "contrast", "snow", "brightness", "pixelate", "jpeg_compression"]


def open_small(model: VisionModel, method: str = "source", protocol: Protocol | None = None, **more: Any) -> RunSession:
    values = {"images": 10, "batch_size": 4, "domains": ("fog", "contrast"), "preset": "none", "device": "cpu", **more}
    return open_run(RunSpec(method=method, stream=protocol or Protocol(), **values), model=model)


def log_of(session: RunSession) -> tuple[list[Entry], list[int]]:
    entries: list[Entry] = []
    saved: list[int] = []
    for some, save in run_stream(session, Classification()):
        entries += some
        saved += [len(entries)] if save else []
    return entries, saved


def test_source_errors_are_those_of_the_model(model: VisionModel) -> None:
    session = open_small(model)
    entries, saved = log_of(session)
    with torch.no_grad():
        wrong = [int((model(b.images).logits.argmax(1) != b.labels).sum()) for b in session.stream]
    assert [entry["errors"] for entry in entries] == wrong
    assert [entry["images"] for entry in entries] == [4, 4, 2] * 2
    assert [entry["domain"] for entry in entries] == ["fog"] * 3 + ["contrast"] * 3
    assert saved == [6]


def test_a_batch_is_scored_with_the_prediction_made_before_its_update(model: VisionModel) -> None:
    session = open_small(model, "tent", settings={"learning_rate": 10.0}, images=4, domains=("fog",))
    entries, _ = log_of(session)
    batch = session.stream[0]
    with torch.no_grad():
        before = int((model(batch.images).logits.argmax(1) != batch.labels).sum())
    assert entries[0]["errors"] == before


def test_held_out_domains_are_predicted_and_not_learnt_from(model: VisionModel) -> None:
    session, other = (
        open_small(model, "tent", Protocol(held_out=5), settings={"learning_rate": 0.1}, domains=tuple(SIX))
        for _ in range(2)
    )
    entries, _ = log_of(session)
    assert [entry["phase"] for entry in entries] == ["adapt"] * 3 + ["held_out"] * 15
    reference = other.adapter
    for batch in other.stream.batches():
        if batch.learn:
            reference(batch.images)
    frozen = [int((reference.predict(b.images).argmax(1) != b.labels).sum()) for b in other.stream.batches(3)]
    assert [entry["errors"] for entry in entries[3:]] == frozen
    assert all(torch.equal(a, b) for a, b in zip(session.adapter.parameters(), reference.parameters(), strict=True))


def test_held_out_errors_have_their_own_list(model: VisionModel, tmp_path: Path) -> None:
    result = run("digits-c", "tent", model=model, protocol="held-out", images=6, domains=SIX, out=tmp_path)
    assert [d.name for d in result.domains] == SIX[:1]
    assert result.held_out is not None
    assert [d.name for d in result.held_out] == SIX[1:]
    assert result.mean_score == result.domains[0].error
    assert result.held_out_score == pytest.approx(sum(d.error for d in result.held_out) / 5)


class Reporting(Source):
    """Reports diagnostics of every type."""

    def step(self, images: Tensor) -> Tensor:
        self.diagnostics = {
            "change": torch.tensor(True),
            "confidence": torch.tensor(0.25),
            "count": torch.tensor(7),
            "lost": torch.tensor(float("nan")),
            "plain": 1.5,
            "errors": -1,  # does not overwrite the errors of the entry
        }
        return super().step(images)


def test_diagnostics_are_in_the_log(model: VisionModel) -> None:
    session = open_small(model, images=2, batch_size=2, domains=("fog",))
    session.online = Reporting(model)
    entries, _ = log_of(session)
    (part,) = entries[0]["parts"]
    assert json.loads(json.dumps(entries[0], allow_nan=False)) == {
        "batch": 0, "domain": "fog", "severity": 5, "round": 1, "phase": "adapt", "images": 2,
        "errors": part["errors"], "parts": [part],
        "diagnostics": {"change": True, "confidence": 0.25, "count": 7, "lost": None, "plain": 1.5, "errors": -1},
    }  # fmt: skip
    assert (part["segment"], part["images"], part["early"][1]) == (0, 2, 1)


def test_resets_start_every_domain_from_the_source(model: VisionModel) -> None:
    def entries(protocol: Protocol, *domains: str) -> list[Entry]:
        return log_of(open_small(model, "tent", protocol, settings={"learning_rate": 0.1}, domains=domains))[0]

    both = entries(Protocol(resets="domain"), "fog", "contrast")
    alone = entries(Protocol(), "contrast")
    keys = ("images", "errors", "diagnostics")
    assert [[e[k] for k in keys] for e in both[3:]] == [[e[k] for k in keys] for e in alone]
    continual = entries(Protocol(), "fog", "contrast")
    assert [e["diagnostics"] for e in continual[3:]] != [e["diagnostics"] for e in both[3:]]


def test_a_mixed_batch_is_counted_for_each_of_its_domains(model: VisionModel) -> None:
    session = open_small(model, protocol=Protocol(sampling="mixed"), batch_size=5, domains=tuple(SIX))
    entries, saved = log_of(session)
    assert saved == [12]
    for batch, entry in zip(session.stream, entries, strict=True):
        with torch.no_grad():
            wrong = model(batch.images).logits.argmax(1) != batch.labels
        counts = {(p["segment"], p["images"], p["errors"]) for p in entry["parts"]}
        there = set(batch.segments.tolist())
        assert counts == {(s, int((batch.segments == s).sum()), int(wrong[batch.segments == s].sum())) for s in there}
        assert (entry["domain"], entry["errors"]) == ("mixed", int(wrong.sum()))


def test_the_adapter_gets_images_only(model: VisionModel) -> None:
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    session = open_small(model)
    session.adapter.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    log_of(session)
    assert len(seen) == 6
    assert all(len(args) == 1 and isinstance(args[0], Tensor) and not kwargs for args, kwargs in seen)


class Recorder(Observer):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def started(self, run: RunProgress) -> None:
        self.calls.append(("started", run.method, run.batches, run.done))

    def advanced(self, run: RunProgress, entries: Sequence[Entry]) -> None:
        self.calls.append(("advanced", len(entries), run.done))

    def finished(self, result: Result) -> None:
        self.calls.append(("finished", len(result.domains)))


def test_an_observer_gets_all_progress_and_of_a_complete_run_the_end(model: VisionModel, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": model, "images": 10, "domains": ["fog", "snow"], "batch_size": 4}
    first, again = Recorder(), Recorder()
    run("digits-c", "source", observer=first, out=tmp_path, **options)
    assert first.calls == [("started", "source", 6, 0), ("advanced", 3, 3), ("advanced", 3, 6), ("finished", 2)]
    run("digits-c", "source", observer=again, out=tmp_path, **options)
    assert again.calls == [("started", "source", 6, 6), ("finished", 2)]


def test_a_device_that_does_not_exist_is_refused() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda", "mps")
    with refused("unknown-device", "cudaa", "'cuda'"):
        find_device("cudaa")
    if not torch.cuda.is_available():
        with refused("no-device", "cuda", "--device"):
            find_device("cuda")


def test_the_stream_is_adapted_to_as_without_it_and_the_test_is_that_of_the_end(
    model: VisionModel, tmp_path: Path
) -> None:
    common: dict[str, Any] = {
        "model": model,
        "device": "cpu",
        "out": tmp_path,
        "images": 30,
        "domains": ["fog", "snow", "contrast"],
    }
    forked, plain, held_out = (
        run("digits-c", "tent", protocol=text, **common)
        for text in ("continual,held_out=2,then=adapt", "continual", "continual,held_out=2")
    )
    assert [visit.error for visit in forked.domains] == [visit.error for visit in plain.domains]
    assert forked.held_out is not None
    assert held_out.held_out is not None
    assert [visit.error for visit in forked.held_out] == [visit.error for visit in held_out.held_out]
    assert "3 domains in order, severity 5; before the last 2, frozen and tested on them" in "\n".join(
        record_lines(forked.record)
    )
    assert check_result(forked) is forked
