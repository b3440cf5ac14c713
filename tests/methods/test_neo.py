"""NEO: the running means, what the classifier sees of them, and where they are moved to."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.errors import refused
from testdg.methods.neo import NEO
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.testing import stream


class TwoNumbers(nn.Module):
    """Features are the means of the first two channels, times ten."""

    def __init__(self, bias: tuple[float, float] | None = (0.0, 0.0)) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2, bias=bias is not None)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(2))
            if bias is not None:
                self.head.bias.copy_(torch.tensor(bias))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(10 * images[:, :2].mean((2, 3)))  # type: ignore[no-any-return]


def two_numbers(**options: Any) -> VisionModel:
    return load_model(TwoNumbers(**options), preprocessing=Preprocessing())


def images_of(*features: tuple[float, float]) -> Tensor:
    rows = torch.tensor([[*row, 0.0] for row in features]) / 10
    return rows[:, :, None, None].expand(-1, -1, 4, 4)


FIRST, SECOND = images_of((1, 2), (3, 4)), images_of((5, 0))


@pytest.mark.parametrize(
    ("share", "means", "logits"),
    [
        (None, [[2, 3], [3, 2]], [[[-1, -1], [1, 1]], [[2, -2]]]),
        (0.1, [[0.2, 0.3], [0.68, 0.27]], [[[0.8, 1.7], [2.8, 3.7]], [[4.32, -0.27]]]),
    ],
)
def test_two_batches_are_the_worked_numbers(share: float | None, means: Any, logits: Any) -> None:
    adapter = NEO(two_numbers(), share=share)
    for batch, mean, expected in zip((FIRST, SECOND), means, logits, strict=True):
        torch.testing.assert_close(adapter(batch), torch.tensor(expected, dtype=torch.float32))
        torch.testing.assert_close(adapter.mean, torch.tensor(mean, dtype=torch.float32))


def test_the_first_image_alone_is_not_looked_at() -> None:
    adapter = NEO(two_numbers(bias=(0.3, -0.1)))
    torch.testing.assert_close(adapter(SECOND), torch.tensor([[0.3, -0.1]]))
    later = NEO(two_numbers(bias=(0.3, -0.1)), after=2)
    torch.testing.assert_close(later(SECOND), torch.tensor([[5.3, -0.1]]))
    assert later.mean.tolist() == pytest.approx([5, 0])
    torch.testing.assert_close(later(SECOND), torch.tensor([[0.3, -0.1]]))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.floats(-1, 1), st.integers(0, 2**16))
def test_neither_batches_nor_a_common_shift_matter(sizes: list[int], shift: float, seed: int) -> None:
    rows = 2 + torch.rand(sum(sizes), 2, generator=torch.Generator().manual_seed(seed)).double()
    one, other = NEO(two_numbers()), NEO(two_numbers())
    for part in torch.split(rows, sizes):
        predicted = one(images_of(*part.tolist()))
        torch.testing.assert_close(other(images_of(*(part + shift).tolist())), predicted, atol=1e-4, rtol=1e-4)
    whole = NEO(two_numbers())
    whole(images_of(*rows.tolist()))
    torch.testing.assert_close(one.mean, whole.mean)
    assert int(one.seen) == int(whole.seen) == len(rows)


def test_logits_and_the_shift_are_the_source(vit: VisionModel) -> None:
    adapter = NEO(vit)
    for images in stream(adapter):
        logits = adapter(images)
        weight = vit.network.get_submodule(vit.head).get_parameter("weight")
        torch.testing.assert_close(logits + weight @ adapter.mean, vit(images).logits, atol=1e-5, rtol=1e-4)


def test_the_mean_of_the_source_is_where_a_source_stream_stays(cnn: VisionModel) -> None:
    adapter = NEO(cnn, anchor="source")
    images = stream(adapter, 1, 64)[0]
    with refused("no-source-data"):
        adapter(images)
    adapter.warm_up([images[:40], images[40:]])
    torch.testing.assert_close(adapter(images), cnn(images).logits, atol=1e-5, rtol=1e-4)


def test_without_a_bias_there_is_no_export(tmp_path: Any) -> None:
    adapter = NEO(two_numbers(bias=None))
    adapter(FIRST)
    with refused("not-exportable"):
        adapter.export(tmp_path)
