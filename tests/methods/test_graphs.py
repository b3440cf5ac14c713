"""CUDA graphs give what the same steps give one kernel at a time."""

import pytest
import torch

from testdg import Preprocessing, adapt, load_model
from testdg.models import TinyViT
from testdg.testing import stream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"as_released": True},
        {"discrimination": False, "invariance": False},
        {"selection": "reservoir"},
    ],
)
def test_recorded_steps_equal_plain_steps(precision, settings):
    torch.manual_seed(0)
    model = load_model(TinyViT(), preprocessing=Preprocessing((32, 32))).cuda()
    settings = {"threshold": 0.0, "learning_rate": 1e-3, "precision": precision, "previous_domains": 3, **settings}
    plain, recorded = adapt(model, "testdg", **settings), adapt(model, "testdg", cuda_graphs=True, **settings)
    batches = stream(plain, 30, 12)
    for k, images in enumerate(batches):
        for adapter in (plain, recorded):
            adapter.detector.threshold = 0.0 if k in (6, 20) else 1.0
        torch.testing.assert_close(recorded(images), plain(images), rtol=1e-2, atol=1e-2)
    assert recorded.recorded["learn"].graphs, "nothing was recorded"
    torch.testing.assert_close(recorded.prototypes.current, plain.prototypes.current, rtol=1e-2, atol=1e-2)
    assert torch.equal(recorded.queue.positions, plain.queue.positions)
    recorded.reset()
    fresh = adapt(model, "testdg", cuda_graphs=True, **settings)
    torch.testing.assert_close(recorded(batches[0]), fresh(batches[0]))
