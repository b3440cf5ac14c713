"""Small batches wait until there are enough images."""

import torch
from torch import Tensor

from testdg.methods.parts.waiting import Waiting


def batch(first: int, count: int, size: int = 4) -> tuple[Tensor, Tensor]:
    """Images and logits that tell the number of their image."""
    numbers = torch.arange(first, first + count).float()
    return numbers[:, None, None, None].expand(count, 3, size, size), numbers[:, None].expand(count, 2)


def test_batches_are_given_together_in_their_order_once_there_are_enough() -> None:
    waiting = Waiting(7)
    assert waiting.gather(*batch(0, 3)) is None
    assert waiting.gather(*batch(3, 3)) is None
    assert [len(value) for value in waiting.content()] == [6, 6]
    gathered = waiting.gather(*batch(6, 3))
    assert gathered is not None
    for value, expected in zip(gathered, batch(0, 9), strict=True):
        assert torch.equal(value, expected)
    assert waiting.content() == []


def test_a_batch_that_is_large_enough_does_not_wait() -> None:
    waiting, given = Waiting(3), batch(0, 3)
    gathered = waiting.gather(*given)
    assert gathered is not None
    assert all(value is other for value, other in zip(gathered, given, strict=True))
    assert waiting.content() == []


def test_images_of_another_size_do_not_wait_together() -> None:
    waiting = Waiting(5)
    waiting.gather(*batch(0, 3))
    assert waiting.gather(*batch(3, 4, size=2)) is None
    assert [len(value) for value in waiting.content()] == [4, 4]
    assert waiting.content()[0].shape[2] == 2


def test_what_waits_is_a_copy() -> None:
    waiting, images = Waiting(5), torch.ones(2, 3, 4, 4)
    waiting.gather(images, torch.ones(2, 2))
    images.zero_()
    assert bool((waiting.content()[0] == 1).all())
