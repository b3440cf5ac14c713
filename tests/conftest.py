"""Shared by all tests."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Some virtual machines announce AMX and then refuse its instructions: keep bf16 on plain AVX-512.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers reads it when it is imported

import torch
from hypothesis import settings

from ray_tools import real_cluster
from testdg.data.benchmarks import load_benchmark
from testdg.errors import UserError
from testdg.files import locked
from testdg.models import Preprocessing, TinyViT, VisionModel
from testdg.runs import source_model

settings.register_profile("testdg", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("testdg")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many threads here as in the processes that a test starts: sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt here and in child processes, even if it was ignored, as in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def shared_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the source model of digits-c, trained once in a test run, for all of its processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "source-models"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("TESTDG_CACHE", str(folder))
    with _alone(folder.with_suffix(".lock")):
        source_model(load_benchmark("digits-c"))
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model with random weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "random-vit"
    network = TinyViT(patch=8, width=16, depth=1, heads=2)
    VisionModel(network, "head", Preprocessing((32, 32)), "random-vit").save(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Ray cluster of one node."""
    with real_cluster(tmp_path_factory.mktemp("cache")) as found:
        yield found


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process of the test run is here."""
    while True:
        try:
            with locked(path, "busy"):
                yield
            return
        except UserError as error:
            if str(error) != "busy":
                raise
            time.sleep(0.1)
