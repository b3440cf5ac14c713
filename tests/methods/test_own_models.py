"""A module and images as users have them."""

import pytest
import torch
from torch import nn

from testdg import Preprocessing, adapt, load_model
from testdg.errors import UserError
from testdg.models import TinyCNN


def test_the_module_of_the_caller_is_left_as_it_was() -> None:
    module = TinyCNN().half().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    adapter = adapt(module, "tent", learning_rate=0.1)
    adapter(torch.rand(4, 3, 32, 32))
    assert all(part.training for part in module.modules())
    for name, value in module.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])


def test_a_bare_module_is_told_what_it_gets() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.warns(UserWarning, match=r"Sequential gets images as they are.*preprocessing=Preprocessing"):
        load_model(module)
    load_model(module, preprocessing=Preprocessing())  # whoever says so hears nothing


@pytest.mark.parametrize("method", ["tent", "cotta"])  # which look at the input before and after their pass
def test_a_hair_outside_is_clamped(method: str) -> None:
    images = torch.rand(4, 3, 32, 32)
    images[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    over = images.clone()
    over[0, 0, 0, :2] = torch.tensor([-9e-4, 1 + 9e-4])
    module = TinyCNN()
    one, other = (adapt(module, method, learning_rate=0.0) for _ in range(2))
    assert torch.equal(one.predict(over), other.predict(images))
    assert torch.equal(one(over), other(images))


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.full((2, 3, 32, 32), 1.01), "got 1.01 to 1.01: divide by 255"),
        (torch.full((2, 3, 32, 32), -0.5), "the model normalises by itself: pass plain pixels"),
        (torch.rand(2, 32, 32, 3), r"got 32: they come last there, so call images.permute\(0, 3, 1, 2\)"),
    ],
)
def test_beyond_that_the_likely_cause_is_named(images: torch.Tensor, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        adapt(TinyCNN(), "tent")(images)
