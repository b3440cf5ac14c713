"""Every method, on every model that it claims, keeps the laws of the contract."""

import pytest
import torch

from testdg import Preprocessing, load_model
from testdg.methods import methods
from testdg.models import TinyCNN, TinyViT
from testdg.testing import CHECKS, check_adapter


def tiny(kind):
    torch.manual_seed(0)
    network = {"vit": lambda: TinyViT(width=32, depth=2, patch=8), "cnn": lambda: TinyCNN(width=8)}[kind]()
    return load_model(network, preprocessing=Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3))


@pytest.mark.parametrize("check", list(CHECKS))
@pytest.mark.parametrize("kind", ["vit", "cnn"])
@pytest.mark.parametrize("method", [*methods(), "testdg with the amplifier", "testdg with small batches gathered"])
def test_battery(method, kind, check):
    model = tiny(kind)
    method, _, variant = method.partition(" with ")
    options = {}
    if method == "testdg":
        options = {"gather": 10} if "gathered" in variant else {"gather": 1, "amplifier": bool(variant)}
    adapter = methods()[method]
    if model.task not in adapter.tasks or adapter.refuses(model):
        pytest.skip(f"{method} does not claim {kind}")
    if check in adapter.exceptions(model):
        pytest.skip(adapter.exceptions(model)[check])
    assert check_adapter(lambda **settings: adapter(model, **options, **settings), only=check) == [check]
