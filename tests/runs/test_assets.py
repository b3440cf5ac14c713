"""Real pictures and a real model, where the environment variable TESTDG_ASSETS points to them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import to_float
from testdg.runs import source_model

ASSETS = os.environ.get("TESTDG_ASSETS")
pytestmark = pytest.mark.skipif(ASSETS is None, reason="TESTDG_ASSETS is not set")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assets")
    subprocess.run([sys.executable, Path(ASSETS or "") / "unpack.py", folder], check=True)
    return folder


def test_a_published_model_reads_clean_cifar10(data: Path) -> None:
    bench = load_benchmark("cifar10-c", data)
    test = bench.test().first(100)
    model = source_model(bench, Path(ASSETS or "") / "weights" / "vit-small-cifar10")
    right = 0
    with torch.no_grad():
        for start in range(0, 100, 50):
            images = model.prepare(to_float(test.read(start, start + 50)))
            right += int((model(images).logits.argmax(1) == test.labels[start : start + 50]).sum())
    assert right >= 95


def test_the_training_batches_that_are_there_are_counted(data: Path) -> None:
    with pytest.warns(UserWarning, match="25000 training images"):
        assert len(load_benchmark("cifar10-c", data).train()) == 25000
