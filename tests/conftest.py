"""Shared by all tests."""

import os
from pathlib import Path

import pytest

# Some virtual machines announce AMX and then refuse its instructions: keep bf16 on plain AVX-512.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture
def shared_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for trained source models that lasts as long as the test run, for all of its processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "source-models"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("TESTDG_CACHE", str(folder))
    return folder
