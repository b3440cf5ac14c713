"""Every method, on every model that it claims, keeps the laws of the contract."""

import pytest

from support.models import tiny_cnn, tiny_vit
from testdg.methods import methods
from testdg.testing import CHECKS, check_adapter

VARIANTS = {
    "testdg as released": ("testdg", {"as_released": True}),
    "testdg without amplifier": ("testdg", {"amplifier": False}),
    "roid without correction": ("roid", {"prior_correction": False}),
    "versatile on all parameters": ("versatile", {"trained": "all"}),
    "testdg warmed up": ("testdg", {"source_images": 12, "warm_up_learning_rate": 1e-2}),
}


@pytest.mark.parametrize("check", list(CHECKS))
@pytest.mark.parametrize("kind", ["vit", "cnn"])
@pytest.mark.parametrize("method", [*methods(), *VARIANTS])
def test_battery(method, kind, check):
    model = {"vit": tiny_vit, "cnn": tiny_cnn}[kind]()
    method, options = VARIANTS.get(method, (method, {}))
    adapter = methods()[method]
    if model.task not in adapter.tasks or adapter.refuses(model):
        pytest.skip(f"{method} does not claim {kind}")
    if check in adapter.exceptions(model):
        pytest.skip(adapter.exceptions(model)[check])
    assert check_adapter(lambda **settings: adapter(model, **{**settings, **options}), only=check) == [check]
