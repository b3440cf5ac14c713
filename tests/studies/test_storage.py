"""Runs behind a URL, with fsspec's own file system."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.errors import refused
from testdg.studies import Complete, Failed, Grid, Running, RunSpec, bench, expand
from testdg.studies.engine import run_one
from testdg.studies.ray import pack_model
from testdg.studies.storage import Remote, find_out


@pytest.fixture
def spec(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path / "cache"))
    values = {"method": "tent", "model": str(model), "device": "cpu", "images": 6, "domains": ["fog", "contrast"]}
    return expand(Grid(values))[1]


def run_there(spec: RunSpec, place: Path) -> tuple[Complete | Failed, list[int]]:
    news: list[Running] = []
    end = run_one(0, spec, find_out(place.as_uri()), news.append)
    return end, [one.done for one in news]


def test_a_url_gets_the_complete_run_and_gives_it_back(spec: RunSpec, tmp_path: Path) -> None:
    place = tmp_path / "place"
    first, done = run_there(spec, place)
    assert isinstance(first, Complete)
    assert done[0] == 0
    (folder,) = place.iterdir()
    assert {path.name for path in folder.iterdir()} == {"config.toml", "events.jsonl", "result.json", "state"}
    assert not first.result.folder.exists()  # nothing is left where it was made
    written = (folder / "result.json").stat().st_mtime_ns
    (second,) = bench([spec], place.as_uri())
    assert second == first
    assert isinstance(second, Complete)
    assert (second.result.folder / "events.jsonl").read_bytes() == (folder / "events.jsonl").read_bytes()
    assert (folder / "result.json").stat().st_mtime_ns == written
    assert run_there(spec, place)[1] == [spec.batches]


def test_a_run_that_cannot_be_sent_is_not_lost_and_has_no_result_there(spec: RunSpec, tmp_path: Path) -> None:
    place = tmp_path / "place"
    alone = run_one(0, spec, tmp_path / "alone", lambda news: None)
    assert isinstance(alone, Complete)
    obstacle = place / alone.result.folder.name / "state"
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("in the way of a folder")
    failed, _ = run_there(spec, place)
    assert isinstance(failed, Failed)
    assert place.as_uri() in failed.sentence
    assert failed.trace == ""
    assert not list(place.rglob("result.json*"))
    obstacle.unlink()
    end, done = run_there(spec, place)
    assert isinstance(end, Complete)
    assert done == [spec.batches]  # it was complete here, and only had to be sent
    assert len(list(place.rglob("result.json"))) == 1


def test_a_run_that_the_storage_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path))
    with refused("no-such-run", "memory://runs", "x"):
        Remote("memory://runs").copy("x")


@pytest.mark.parametrize("url", ["nothing://runs", "file:///dev/null/runs"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with refused("cannot-write", url, "--out"):
        Remote(url).open()


def test_folders_stay_folders() -> None:
    assert find_out("runs/x") == Path("runs/x")
    assert find_out("s3://bucket/runs/") == Remote("s3://bucket/runs")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_model_is_the_same_after_the_transfer(spec: RunSpec, model: Path, kind: str, tmp_path: Path) -> None:
    weights = tmp_path / "lone.safetensors"
    weights.write_bytes((model / "model.safetensors").read_bytes())
    source = model if kind == "folder" else weights
    sent = pack_model(msgspec.structs.replace(spec.setup, model=str(source)))
    assert sent is not None
    there = sent.unpack()
    assert there.name == source.name
    assert there.is_relative_to(tmp_path / "cache")
    pairs: list[tuple[Any, Any]] = [(there, source)]
    if kind == "folder":
        assert sorted(path.name for path in there.iterdir()) == sorted(path.name for path in model.iterdir())
        pairs = [(there / path.name, path) for path in model.iterdir()]
    assert all(one.read_bytes() == other.read_bytes() for one, other in pairs)
    assert sent.unpack() == there  # unpacked before
    assert pack_model(msgspec.structs.replace(spec.setup, model="google/vit-base-patch16-224")) is None
