"""Small batches are collected until there are enough images for a step."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class Waiting(nn.Module):
    """Small batches, until there are enough images for a step: images, and the teacher's logits.

    A step on a few images would follow noise: Adam makes every step equally large.
    """

    def __init__(self, enough: int, names: tuple[str, ...] = ("images", "logits")) -> None:
        super().__init__()
        self.enough, self.names = enough, names
        self.varying = self.uncopied = names  # always replaced, never written in place
        for name in names:
            self.register_buffer(name, None)

    def misfit(self, buffers: Mapping[str, Tensor | None]) -> str | None:
        """Name the first inconsistent buffer: either all are empty, or all have the same few images."""
        first = buffers[self.names[0]]
        count = 0 if first is None or first.ndim != 4 else len(first)
        for name, value in buffers.items():
            if value is None and first is None:
                continue
            if value is None or value.ndim not in (2, 4) or value.dtype not in (torch.float32, torch.bfloat16):
                return name
            if not 0 < len(value) == count < self.enough:
                return name
        return None

    def content(self) -> list[Tensor]:
        """The collected batches; empty if there are none."""
        return [value for name in self.names if (value := getattr(self, name)) is not None]

    def gather(self, *batch: Tensor) -> tuple[Tensor, ...] | None:
        """The collected images with a new batch once there are enough, else None. Another image size starts again."""
        if (waiting := self.content()) and waiting[0].shape[1:] == batch[0].shape[1:]:
            batch = tuple(torch.cat(pair) for pair in zip(waiting, batch, strict=True))
        enough = len(batch[0]) >= self.enough
        for name, value in zip(self.names, batch, strict=True):
            setattr(self, name, None if enough else value.detach().clone())
        return batch if enough else None

    def gather_for(
        self, learn: Callable[[Tensor], Tensor], infer: Callable[[Tensor], Tensor], images: Tensor
    ) -> Tensor:
        """Learn from images, which predicts them; too few are predicted at once and learnt from with the next ones."""
        gathered = self.gather(images)
        if gathered is not None and gathered[0] is images:
            return learn(images)
        with torch.no_grad():
            logits = infer(images)
        if gathered is not None:
            learn(gathered[0])
        return logits
