"""What leaves for another place predicts the same there: torch.export and ONNX Runtime."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.errors import refused
from testdg import Preprocessing, adapt, load_model
from testdg.models import TinyCNN, TinyViT, VisionModel
from testdg.models.segformer import tiny_segformer

SIZED = Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)
IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
KINDS: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: TinyCNN(width=4),
    "vit": lambda: TinyViT(width=16, depth=1, patch=8),
    "segformer": lambda: tiny_segformer(4),
}


def adapted(kind: str, folder: Path) -> tuple[VisionModel, Tensor]:
    """A model that has met a stream, as its folder is read back, and what the adapter predicts."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"sites": 0, "sketch": "stream", "source_images": 64, "invariance_weight": 0.0}
    adapter = adapt(load_model(KINDS[kind](), preprocessing=SIZED), "testdg_aligned", **settings)
    for _ in range(2):
        adapter(IMAGES.repeat(22, 1, 1, 1))
    adapter.export(folder)
    return load_model(folder), adapter.predict(IMAGES)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_export(kind: str, tmp_path: Path) -> None:
    model, expected = adapted(kind, tmp_path / "adapted")
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model.plain(), (torch.rand(2, 3, 32, 32),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    found = torch.export.load(tmp_path / "model.pt2").module()(model.prepare(IMAGES))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime(kind: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, expected = adapted(kind, tmp_path / "adapted")
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.onnx.export(
        model.plain(), (torch.rand(2, 3, 32, 32),), tmp_path / "model.onnx", dynamo=True, dynamic_shapes=({0: batch},)
    )
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: model.prepare(IMAGES).numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)


def test_an_alignment_does_not_fit_into_a_graph(tmp_path: Path) -> None:
    adapter = adapt(load_model(KINDS["vit"](), preprocessing=SIZED), "align", sketch="stream", source_images=64)
    adapter(IMAGES.repeat(22, 1, 1, 1))
    with refused("not-exportable"):
        adapter.adapted_model().plain()
