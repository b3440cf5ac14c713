"""Injected failures: a forward or backward pass of an adapter raises, as it does when memory runs out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from testdg.methods import Adapter
from testdg.models import Output, VisionModel


class Injected(RuntimeError):
    """An injected failure of a step."""


@contextmanager
def failing(adapter: Adapter, at: int | None = None) -> Iterator[list[str]]:
    """Make a step fail at its `at`-th moment (never for None); yields the names of the moments that passed.

    A moment is the beginning or the end of a pass of a network, or the beginning of a backward pass.
    """
    moments: list[str] = []

    def pass_by(what: str) -> None:
        moments.append(what)
        if len(moments) - 1 == at:
            raise Injected(f"injected at moment {at}: {what}")

    def watched(name: str, run: Callable[[Tensor], Output]) -> Callable[[Tensor], Output]:
        def watch(images: Tensor) -> Output:
            pass_by(f"{name} begins")
            output = run(images)
            pass_by(f"{name} ends")
            return output

        return watch

    models = [(name, part) for name, part in adapter.named_modules() if isinstance(part, VisionModel)]
    for name, model in models:
        model.__dict__["run"] = watched(name, model.run)
    grad = torch.autograd.grad

    def backward(*inputs: Any, **options: Any) -> Any:
        pass_by("backward")
        return grad(*inputs, **options)

    torch.autograd.grad = backward
    try:
        yield moments
    finally:
        torch.autograd.grad = grad
        for _, model in models:
            del model.__dict__["run"]
