"""A module and images as users have them."""

import pytest
import torch

from support.errors import refused
from testdg import adapt
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
    ("images", "code", "cause"),
    [
        (torch.full((2, 3, 32, 32), 1.01), "image-range", "255"),
        (torch.full((2, 3, 32, 32), -0.5), "image-range", "-0.5"),
        (torch.rand(2, 32, 32, 3), "image-shape", "permute(0, 3, 1, 2)"),
    ],
)
def test_beyond_that_the_likely_cause_is_named(images: torch.Tensor, code: str, cause: str) -> None:
    with refused(code, cause):
        adapt(TinyCNN(), "tent")(images)
