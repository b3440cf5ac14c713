"""Defaults of settings that differ for a kind of network, and what comes before them."""

from pathlib import Path
from typing import Any

import pytest

from support.networks import segformer
from testdg import adapt
from testdg.methods import Adapter
from testdg.methods.testdg_aligned import TestDGAligned
from testdg.models import VisionModel
from testdg.testing import stream

PLAIN = (2e-5, 0.99, 0.0)
BATCH_NORM = (1e-3, 0.98, 1.5)


def chosen(adapter: Adapter) -> tuple[float, float, float]:
    assert isinstance(adapter, TestDGAligned)
    s = adapter.settings
    return s.learning_rate, s.momentum, s.augmentation


def test_a_transformer_has_the_defaults_of_the_class(vit: VisionModel) -> None:
    assert chosen(adapt(vit, "testdg_aligned")) == chosen(adapt(segformer(), "testdg_aligned")) == PLAIN


def test_a_classifier_with_batch_norm_has_its_own(cnn: VisionModel) -> None:
    adapter = adapt(cnn, "testdg_aligned")
    assert chosen(adapter) == BATCH_NORM
    assert adapter.learner.optimizer.param_groups[0]["lr"] == 1e-3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"learning_rate": 2e-5}, (2e-5, 0.98, 1.5)),
        ({"momentum": 0.99, "augmentation": 0.0}, (1e-3, 0.99, 0.0)),
        (TestDGAligned.preset("digits-c"), (5e-4, 0.99, 1.5)),
        ({**TestDGAligned.preset("digits-c"), "learning_rate": 1e-4}, (1e-4, 0.99, 1.5)),
    ],
)
def test_what_is_given_wins(settings: dict[str, Any], expected: tuple[float, ...], cnn: VisionModel) -> None:
    assert chosen(adapt(cnn, "testdg_aligned", **settings)) == expected


@pytest.mark.parametrize("settings", [{}, {"learning_rate": 2e-5, "momentum": 0.99, "augmentation": 0.0}])
def test_a_saved_adapter_has_the_settings_it_had(settings: dict[str, Any], cnn: VisionModel, tmp_path: Path) -> None:
    adapter = adapt(cnn, "testdg_aligned", source_images=64, **settings)
    adapter.warm_up(stream(adapter, 8, 20)[:4])
    adapter.save(tmp_path)
    with pytest.MonkeyPatch.context() as patch:  # a later version may choose others
        patch.setattr(
            TestDGAligned, "defaults_for", classmethod(lambda cls, model: {"learning_rate": 0.5, "memory": 3})
        )
        again = Adapter.load(tmp_path, cnn)
    assert again.settings == adapter.settings
    assert chosen(again) == (PLAIN if settings else BATCH_NORM)
