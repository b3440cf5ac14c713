"""Warm-ups are cached, and a cached one gives the same adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.methods import Adapter, adapt
from testdg.models import TinyViT, load_model
from testdg.runs.session import Session
from testdg.runs.source import TrainingImages


def warm_up(adapter: Adapter, benchmark: Benchmark) -> None:
    Session(adapter.model, adapter, TrainingImages(benchmark)).warm_up()


def fresh(seed: int = 0, weights: int = 0) -> Adapter:
    torch.manual_seed(weights)
    return adapt(load_model(TinyViT()), "vida", source_images=128, high_rank=4, views=2, flip=False, seed=seed)


def test_a_second_adapter_begins_where_the_first_one_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path))
    benchmark = load_benchmark("digits-c", images=8)
    first, second, third = fresh(), fresh(), fresh(seed=1)
    warm_up(first, benchmark)
    (cached,) = (tmp_path / "warm-ups").iterdir()
    monkeypatch.setattr(Adapter, "warm_up", lambda *_: pytest.fail("the warm-up is cached"))
    warm_up(second, benchmark)
    images = torch.rand(4, 3, 32, 32)
    assert not second.awaits_source
    assert torch.equal(first(images), second(images))
    for adapter in (first, second):
        adapter.reset()
    assert torch.equal(first.predict(images), second.predict(images))
    with pytest.raises(pytest.fail.Exception):  # another seed draws other images
        warm_up(third, benchmark)
    cached.write_bytes(b"broken")
    with pytest.raises(pytest.fail.Exception):  # an unreadable file is not used
        warm_up(fresh(), benchmark)


def test_every_model_has_its_own_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path))
    benchmark = load_benchmark("digits-c", images=8)
    for weights in (0, 1):
        warm_up(fresh(weights=weights), benchmark)
    monkeypatch.setattr(Adapter, "warm_up", lambda *_: pytest.fail("the warm-up is cached"))
    for weights in (0, 1):
        warm_up(fresh(weights=weights), benchmark)
