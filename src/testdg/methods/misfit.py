"""Whether a saved state fits an adapter: names, shapes and kinds of all its tensors, before any of them is used."""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from testdg.methods.parts.learner import Learner

MARK = "model"
"""Where a warm-up keeps the fingerprint of the model that it was made with."""
WARM = "warm."
GENERATOR = "generator"
Tensors = Mapping[str, Tensor]


@runtime_checkable
class Varying(Protocol):
    """A module with buffers that come and go, or grow: it knows itself which values they may have."""

    varying: tuple[str, ...]

    def misfit(self, buffers: Mapping[str, Tensor | None]) -> str | None:
        """Name the first of those buffers that cannot be; None where all can."""


def misfit(module: nn.Module, generator: torch.Generator, tensors: Tensors) -> str | None:
    """Say which tensor of a state does not fit a module with learners and a generator; None where all fit."""
    plain = {name: value for name, value in tensors.items() if not name.startswith(WARM)}
    if (reason := _misfit(module, generator, plain)) is not None:
        return reason
    warm = {name.removeprefix(WARM): value for name, value in tensors.items() if name.startswith(WARM)}
    if not warm:
        return None
    mark = warm.pop(MARK, None)
    if mark is None or (mark.dtype, mark.ndim) != (torch.uint8, 1):
        return f"{WARM}{MARK} is missing or no fingerprint"
    reason = _misfit(module, generator, {**plain, **warm})
    return None if reason is None else f"{WARM}{reason}"


def _misfit(module: nn.Module, generator: torch.Generator, tensors: Tensors) -> str | None:
    expected = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    expected[GENERATOR] = generator.get_state()
    seen = {GENERATOR}
    for name, submodule in module.named_modules():
        start = f"{name}." if name else ""
        if isinstance(submodule, Varying):
            places = [start + key for key in submodule.varying]
            seen.update(places)
            if (key := submodule.misfit({key: tensors.get(start + key) for key in submodule.varying})) is not None:
                return f"{start}{key} has {_shape(tensors.get(start + key))}, which cannot be"
        if isinstance(submodule, Learner):
            start += "moments."
            own = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
            seen.update(start + key for key in own)
            if (reason := submodule.misfit(own)) is not None:
                return start + reason
    fixed = {name: value for name, value in expected.items() if name not in seen or name == GENERATOR}
    return _first_difference(fixed, tensors, (name for name in tensors if name not in seen))


def _first_difference(expected: Tensors, tensors: Tensors, names: Iterable[str]) -> str | None:
    if (unknown := next((name for name in names if name not in expected), None)) is not None:
        return f"{unknown} is none of its tensors"
    for name, value in expected.items():
        if name not in tensors:
            return f"{name} is missing"
        if (different := difference(tensors[name], value)) is not None:
            return f"{name} {different}"
    return None


def difference(value: Tensor, expected: Tensor) -> str | None:
    """Say how a tensor differs from another in shape or kind; None where it does not."""
    if value.shape != expected.shape:
        return f"has {_shape(value)}, not {_shape(expected)}"
    if value.dtype != expected.dtype:
        return f"is {value.dtype}, not {expected.dtype}"
    return None


def _shape(value: Tensor | None) -> str:
    return "no value" if value is None else f"shape {tuple(value.shape)}"
