"""Models that a method cannot adapt are refused with the reason."""

from typing import Any

import pytest

from support.errors import refused
from support.networks import flat, segformer
from testdg import adapt
from testdg.models import Preprocessing, TinyCNN, VisionModel, load_model

MODELS = {"flat": flat, "maps": segformer, "any size": lambda: load_model(TinyCNN(), preprocessing=Preprocessing())}
CASES: list[tuple[str, str, dict[str, Any], str, tuple[str, ...]]] = [
    *((name, "cnn", {}, "unsuitable-model", (name, "TinyCNN")) for name in
      ("becotta", "continual_mae", "dept", "dpcore", "foa", "rem")),
    *((name, "flat", {}, "unsuitable-model", (name, "flat")) for name in
      ("align", "ecotta", "tent", "versatile", "vida")),
    *((name, "maps", {}, "wrong-task", (name,)) for name in ("foa", "rem")),
    ("testdg", "flat", {}, "unsuitable-model", ("flat",)),
    ("svdp", "vit", {}, "wrong-task", ("svdp", "TinyViT")),
    ("actmad", "any size", {}, "unsuitable-model", ("actmad",)),
    ("rotta", "vit", {"as_released": True}, "unsuitable-model", ("TinyViT", "BatchNorm")),
    ("rem", "vit", {"mask_step": 0.5}, "setting-range", ("mask_step", "0.5")),
    ("vdp", "vit", {"prompt_size": 33}, "setting-range", ("prompt_size", "32", "33")),
]  # fmt: skip


@pytest.mark.parametrize(("method", "kind", "options", "code", "values"), CASES, ids=str)
def test_the_reason_is_named(
    method: str, kind: str, options: dict[str, Any], code: str, values: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    model: VisionModel = MODELS[kind]() if kind in MODELS else request.getfixturevalue(kind)
    with refused(code, *values):
        adapt(model, method, **options)
