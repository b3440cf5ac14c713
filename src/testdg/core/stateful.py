"""State that is collected, not listed: what the next batch depends on, put back exactly, and steps that may fail."""

import copy
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from testdg.core.graphs import Function, Recorded
from testdg.core.learner import Learner
from testdg.core.settings import Settings as BaseSettings
from testdg.core.undo import Undo
from testdg.errors import UserError
from testdg.models import VisionModel

MARK = "model"
"""Where a warm-up keeps the fingerprint of the model that it was made with."""
WARM = "warm."
Tensors = Mapping[str, Tensor]


class PlainState(nn.Module):
    """A module that keeps some attributes in its state: numbers, or lists of them."""

    plain: ClassVar[tuple[str, ...]]
    """Their names."""

    def get_extra_state(self) -> dict[str, Any]:
        """The values, ready for JSON."""
        return {name: getattr(self, name) for name in self.plain}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Put back what `get_extra_state` gave."""
        for name in self.plain:
            setattr(self, name, type(getattr(self, name))(state[name]))


class Stateful(nn.Module):
    """What every adapter is underneath: a model, and all that a method keeps beside it.

    State is found in parameters, buffers, learners, the extra state of submodules and `self.generator`.
    """

    name: ClassVar[str]
    settings: BaseSettings
    model: VisionModel
    generator: torch.Generator

    def __init__(self) -> None:
        super().__init__()
        self.batches = self.images = 0
        self.diagnostics: dict[str, Tensor | float | bool] = {}
        self.recorded: dict[str, Recorded] = {}  # dropped where tensors of the state become other ones
        self._warm: dict[str, Tensor] = {}
        self._torn = False

    def _note_source(self) -> None:
        """Note the state as it is, all parts made: `reset` comes back to it."""
        self._undo = Undo(self)
        self._source = {key: value.cpu().clone() for key, value in self.tensors().items()}, self.values()

    def learners(self) -> dict[str, Learner]:
        """The optimisers of the method, by attribute name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, Learner)}

    @property
    def skipped(self) -> int:
        """Number of updates left out because a loss or a gradient was not finite."""
        return sum(int(learner.skipped) for learner in self.learners().values())

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that the method moves, by name."""
        chosen = {id(p) for learner in self.learners().values() for p in learner.parameters_}
        return {name: parameter for name, parameter in self.named_parameters() if id(parameter) in chosen}

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next batch depends on."""
        state = {key: value for key, value in self.state_dict().items() if isinstance(value, Tensor)}
        for name, learner in self.learners().items():
            state.update({f"{name}.moments.{key}": value for key, value in learner.moments().items()})
        state.update({WARM + name: value for name, value in self._warm.items()})
        return {**state, "generator": self.generator.get_state()}

    def values(self) -> dict[str, Any]:
        """Every plain value that the next batch depends on, ready for JSON."""
        extra = {key: value for key, value in self.state_dict().items() if not isinstance(value, Tensor)}
        return {"batches": self.batches, "images": self.images, **json.loads(json.dumps(extra))}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `values` gave; whatever does not fit is refused before anything changes."""
        reason = misfit(self, self.generator, tensors)
        if reason is None:
            reason = self._put_values(values)
        if reason is not None:
            raise UserError(f"the saved state does not fit {self.model.name}: {reason}")
        for name, parameter in self.named_parameters():
            parameter.copy_(tensors[name])
        for prefix, module in self.named_modules():
            place = prefix + "." if prefix else ""
            for key in module._buffers.keys() - module._non_persistent_buffers_set:
                value = tensors.get(place + key)
                module._buffers[key] = None if value is None else value.to(self.model.device, copy=True)
        for name, learner in self.learners().items():
            start = f"{name}.moments."
            learner.load_moments({key.removeprefix(start): v for key, v in tensors.items() if key.startswith(start)})
        if warm := {key.removeprefix(WARM): v for key, v in tensors.items() if key.startswith(WARM)}:
            self._warm = {name: value.cpu().clone() for name, value in warm.items()}
        self.generator.set_state(tensors["generator"].cpu())
        self._torn = False
        self.recorded = {}

    def _put_values(self, values: Mapping[str, Any]) -> str | None:
        """Put back the plain values of a state; where they do not fit, say why and leave all as it was."""
        own = self.values()
        if values.keys() != own.keys():
            return f"its values lack or have {min(values.keys() ^ own.keys())}"
        counts = [values["batches"], values["images"]]
        if not all(type(count) is int and count >= 0 for count in counts):
            return f"it counts {counts[0]!r} batches and {counts[1]!r} images"
        try:
            self._set_extra(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._set_extra(own)
            return f"its values are of another kind ({type(error).__name__}: {error})"
        self.batches, self.images = counts
        return None

    def _set_extra(self, values: Mapping[str, Any]) -> None:
        for name in values.keys() - {"batches", "images"}:
            self.get_submodule(name.rpartition(".")[0]).set_extra_state(copy.deepcopy(values[name]))

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Have tensors back if the step fails: for weights and moments that are written before its last pass."""
        self._undo.keep(tensors)

    def record(self, name: str, part: Function, *inputs: Tensor, key: Hashable = None) -> dict[str, Tensor]:
        """Run a part of a step, as a CUDA graph where the setting `cuda_graphs` asks for it."""
        if not getattr(self.settings, "cuda_graphs", False):
            return part(*inputs)
        return self.recorded.setdefault(name, Recorded(part, self.generator))(key, *inputs)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Let a step happen altogether or, where it raises, not at all."""
        self._refuse_torn()
        before, self.diagnostics = self.diagnostics, {}
        self._undo.begin(self.generator)
        try:
            yield
        except BaseException:
            self._torn, self.diagnostics = not self._undo.put_back(), before
            raise
        self._undo.forget()

    def _refuse_torn(self) -> None:
        if self._torn:
            raise UserError(
                f"a step of {self.name} failed while it was writing its weights: call reset(), or load a saved state"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for learner in self.learners().values():
            learner.to_parameters()
        if self.generator.device != self.model.device:
            self.generator = torch.Generator(self.model.device).manual_seed(self.settings.seed)
            self._source[0]["generator"] = self.generator.get_state()  # another device has another kind of state
        self._undo = Undo(self)
        self.recorded = {}
        return self


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
    expected["generator"] = generator.get_state()
    seen: set[str] = set()
    for name, submodule in module.named_modules():
        start = f"{name}." if name else ""
        if isinstance(submodule, Varying):
            seen.update(start + key for key in submodule.varying)
            if (key := submodule.misfit({key: tensors.get(start + key) for key in submodule.varying})) is not None:
                return f"{start}{key} has {_shape(tensors.get(start + key))}, which cannot be"
        if isinstance(submodule, Learner):
            start += "moments."
            own = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
            seen.update(start + key for key in own)
            if (reason := submodule.misfit(own)) is not None:
                return start + reason
    expected = {name: value for name, value in expected.items() if name not in seen}
    return _first_difference(expected, {name: value for name, value in tensors.items() if name not in seen})


def _first_difference(expected: Tensors, tensors: Tensors) -> str | None:
    if (unknown := next((name for name in tensors if name not in expected), None)) is not None:
        return f"{unknown} is none of its tensors"
    for name, value in expected.items():
        if name not in tensors:
            return f"{name} is missing"
        if tensors[name].shape != value.shape:
            return f"{name} has {_shape(tensors[name])}, not {_shape(value)}"
        if tensors[name].dtype != value.dtype:
            return f"{name} is {tensors[name].dtype}, not {value.dtype}"
    return None


def _shape(value: Tensor | None) -> str:
    return "no value" if value is None else f"shape {tuple(value.shape)}"
