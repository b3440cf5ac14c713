"""What the documents show really runs."""

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from testdg.methods import methods, registry
from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, load_model
from testdg.testing import CHECKS, check_adapter

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The method of docs/adding-a-method.md, as a module; it is forgotten after the test."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "adding-a-method.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code.count("\n") < 100
    (tmp_path / "head_bias_example.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry._METHODS, "known", methods())
    monkeypatch.delitem(sys.modules, "head_bias_example", raising=False)
    return importlib.import_module("head_bias_example")


def models() -> list[VisionModel]:
    torch.manual_seed(0)
    networks = [TinyViT(width=16, depth=1, patch=8), TinyCNN(width=4)]
    return [load_model(network, preprocessing=Preprocessing((32, 32))) for network in networks]


def test_the_example_method_keeps_every_law(example: ModuleType) -> None:
    for model in models():
        assert check_adapter(lambda model=model, **settings: example.HeadBias(model, **settings)) == list(CHECKS)


def test_the_example_method_learns_and_is_known(example: ModuleType) -> None:
    assert methods()["head_bias"] is example.HeadBias
    adapter = example.HeadBias(models()[0], learning_rate=0.1)
    before = adapter.model.get_parameter("network.head.bias").clone()
    for _ in range(8):
        adapter(torch.rand(6, 3, 32, 32))
    assert not torch.equal(adapter.model.get_parameter("network.head.bias"), before)
    assert adapter.diagnostics["learnt_from"] > 0


def test_the_links_of_the_documents_lead_somewhere() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_example_of_own_pictures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "adapt.md").read_text(encoding="utf-8"), re.DOTALL)
    models()[0].save(tmp_path / "models" / "mine")
    for folder in ("frames", "clean"):
        (tmp_path / folder).mkdir()
        for number, pixels in enumerate(torch.randint(0, 256, (64, 20, 20, 3), dtype=torch.uint8)):
            Image.fromarray(pixels.numpy()).save(tmp_path / folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "adapt.md", "exec"), {})
    assert (tmp_path / "state" / "state.json").is_file()
