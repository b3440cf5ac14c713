"""Processes that share batches end where one process ends that has them whole."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sharing_cases as cases
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import testdg
from testdg import distributed
from testdg.distributed import sharing

CLOSE = 1e-5


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Folders of what the first and the second of two processes did, and of the cases in one."""
    folder = tmp_path_factory.mktemp("shared")
    alone = folder / "alone"
    alone.mkdir()
    spawn(cases.start, (2, folder), nprocs=2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cases.all_cases(alone)
    torch.set_num_threads(threads)
    return folder / "0", folder / "1", alone


def read(folder: Path, case: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(folder / f"{case}.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["about"])  # noqa: SIM118


def without_keys(name: str, values: Tensor) -> Tensor:
    """Leave out the bias of the keys: no prediction depends on it, and Adam follows the rounding of its gradient."""
    return values.view(3, -1)[[0, 2]] if name.endswith("qkv.bias") else values


@pytest.mark.parametrize("case", cases.CASES)
def test_two_processes_end_where_one_does(lived: tuple[Path, Path, Path], case: str) -> None:
    (first, about), (alone, about_alone) = read(lived[0], case), read(lived[2], case)
    assert first.keys() == alone.keys()
    for name in alone.keys() - {name for name in alone if ".moments." in name}:
        one, two = (without_keys(name, tensors[name].double()) for tensors in (alone, first))
        torch.testing.assert_close(two, one, rtol=CLOSE, atol=CLOSE, msg=lambda text, name=name: f"{name}: {text}")
    assert about["values"] == about_alone["values"]
    assert about["skipped"] == about_alone["skipped"] == 0
    assert about["told"] == pytest.approx(about_alone["told"], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("case", cases.CASES)
def test_both_processes_are_alike_to_the_bit(lived: tuple[Path, Path, Path], case: str) -> None:
    (first, about), (second, other) = read(lived[0], case), read(lived[1], case)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert {**about, "most": 0} == {**other, "most": 0}


@pytest.mark.parametrize("case", cases.CASES)
def test_a_process_passes_its_share_alone(lived: tuple[Path, Path, Path], case: str) -> None:
    measured = 64 if "to the stream" in case else 0  # of the beginning of the stream, by each process by itself
    assert read(lived[2], case)[1]["most"] == max(measured, *cases.SIZES)
    assert read(lived[0], case)[1]["most"] == max(measured, max(cases.SIZES) // 2)


@pytest.mark.parametrize("case", [case for case, (method, _, _) in cases.CASES.items() if method != "source"])
def test_the_stream_has_changed_them(lived: tuple[Path, Path, Path], case: str) -> None:
    method, kind, settings = cases.CASES[case]
    fresh = testdg.adapt(cases.network(kind), method, **settings).tensors()
    found, _ = read(lived[0], case)
    moved = [
        float((found[name].double() - value.double()).abs().max()) for name, value in fresh.items() if value.numel()
    ]
    assert max(moved) > 100 * CLOSE


def test_what_cannot_be_shared_is_refused_in_a_sentence(lived: tuple[Path, Path, Path]) -> None:
    first, second = (json.loads((folder / "refused.json").read_text()) for folder in lived[:2])
    assert first == second
    told, batches, logits = first
    expected = [
        "cotta cannot share a stream between 2 processes: it learns from a batch as a whole",
        "testdg_aligned cannot share a stream between 2 processes: a CUDA graph is of one process",
        "a guard watches one process; 2 share this stream",
        "the processes that share a batch got different ones: give the whole batch to each",
        "images must be in [0, 1]; got 0.196078 to 2: divide by 255",
    ]
    for sentence, beginning in zip(told, expected, strict=True):
        assert sentence.startswith(beginning)
    assert batches == 1
    alone = testdg.adapt(cases.network("vit"), "tent")(cases.pictures()[1][:10])
    torch.testing.assert_close(torch.tensor(logits), alone, rtol=CLOSE, atol=CLOSE)


def test_a_batch_that_fails_in_one_process_is_learnt_by_none(lived: tuple[Path, Path, Path]) -> None:
    waiting, failing = (json.loads((folder / "failed.json").read_text()) for folder in lived[:2])
    assert waiting[1]
    assert failing[1]
    assert waiting[0][0].startswith("another of the 2 processes has ended (")
    assert waiting[0][1] == waiting[0][0]
    assert failing[0][0] == "no memory is left"
    assert failing[0][1].startswith("a batch failed in this process, and the others cannot go on without it")


@given(st.integers(1, 200), st.integers(1, 9))
def test_every_image_is_in_one_share_or_all_are_in_each(images: int, processes: int) -> None:
    shares = [sharing.split(images, processes, rank) for rank in range(processes)]
    rows = [list(range(images))[share.rows] for share in shares]
    assert all(rows)
    assert sum(share.weight for share in shares) == pytest.approx(1)
    if images < processes:
        assert all(row == list(range(images)) for row in rows)
    else:
        assert list(chain(*rows)) == list(range(images))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_a_program_that_is_alone_stays_alone() -> None:
    distributed.join()
    assert (distributed.rank(), distributed.size()) == (0, 1)
    images = torch.rand(5, 3)
    with sharing.share(images) as (mine,):
        assert mine is images
        assert not sharing.shared()
        assert sharing.count(mine) == 5
