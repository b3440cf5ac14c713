from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.models import BICUBIC, KINDS
from testdg.models.preprocessing import write_preprocessor


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[[str], tuple[Path, Any]]:
    """Write a random network of a kind as its library does, and give the folder and the network."""

    def make(kind: str) -> tuple[Path, Any]:
        torch.manual_seed(0)
        network = KINDS[kind]().eval()
        network.save_pretrained(tmp_path / kind)
        write_preprocessor(BICUBIC, tmp_path / kind)
        return tmp_path / kind, network

    return make
