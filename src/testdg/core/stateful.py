"""State of a method, collected from its modules: a method needs no code to save, load, reset or undo a step."""

import copy
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from testdg.core.graphs import Function, Recorded
from testdg.core.learner import Learner, load_moments, moments
from testdg.core.settings import Settings as BaseSettings
from testdg.core.state import Values, below
from testdg.errors import UserError
from testdg.models import VisionModel
from testdg.models.blocks import tensors_of

MARK = "model"
"""Name under which a warm-up stores the fingerprint of the model that it was made with."""
WARM = "warm."
"""Prefix of the names of tensors that a warm-up has changed."""


class PlainState(nn.Module):
    """A module that stores the attributes named in `plain` (numbers, or lists of numbers) in its state."""

    plain: ClassVar[tuple[str, ...]]

    def get_extra_state(self) -> Values:
        return {name: getattr(self, name) for name in self.plain}

    def set_extra_state(self, state: Values) -> None:
        for name in self.plain:
            setattr(self, name, type(getattr(self, name))(state[name]))


class Undo:
    """Undoes a failed step: everything that the step may have changed is restored, bit for bit.

    A copy of the whole state before each step would cost as much memory as the model. So three rules limit the copies:

    1. Buffers and plain values are small, and are copied when the step begins.
    2. A module names a large buffer in `uncopied` if it replaces the buffer, or writes it only after the last pass.
       Of such a buffer, only the reference is restored.
    3. Weights and moments are not copied. A step writes them after its last pass, when nothing can fail any more.
       A step that writes them earlier calls `keep` first, which copies them.

    PyTorch counts the writes to each tensor. If the counter of a weight has changed without `keep`, the step broke
    rule 3 and cannot be undone: `restore` returns False, and the adapter refuses batches until a state is restored.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())
        self.learners = [part for part in module.modules() if isinstance(part, Learner)]
        none = nn.Module.get_extra_state
        self.with_values = [part for part in module.modules() if type(part).get_extra_state is not none]
        self.copied: list[tuple[dict[str, Tensor | None], str]] = []  # (owner, key) of buffers that are copied
        self.replaced: list[tuple[dict[str, Tensor | None], str]] = []  # the same of buffers in `uncopied`
        for part in module.modules():
            for key in sorted(part._buffers.keys() - part._non_persistent_buffers_set):
                uncopied = key in getattr(part, "uncopied", ())
                (self.replaced if uncopied else self.copied).append((part._buffers, key))
        self.copies: list[Tensor] = []
        self.saved: list[tuple[list[Tensor], Tensor]] = []  # tensors, and their old values, concatenated

    @torch.no_grad()
    def begin(self, generator: Generator) -> None:
        """Store the state before a step. The copies of the last step are reused if shapes are the same."""
        self.saved = []
        self.generator, self.random = generator, generator.get_state()
        self.values = [copy.deepcopy(part.get_extra_state()) for part in self.with_values]
        self.versions = [parameter._version for parameter in self.parameters]
        self.known = [set(learner.optimizer.state) for learner in self.learners]
        self.buffers = [owner[key] for owner, key in (*self.copied, *self.replaced)]
        self.written = [buffer for buffer in self.buffers[: len(self.copied)] if buffer is not None]
        alike = len(self.copies) == len(self.written) and all(
            (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
            for old, new in zip(self.copies, self.written, strict=True)
        )
        if not alike:
            self.copies = [buffer.clone() for buffer in self.written]
        elif self.copies:
            torch._foreach_copy_(self.copies, self.written)

    @torch.no_grad()
    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors that are about to be written before the last pass of the step."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # recording writes nothing, and a recorded graph is launched as a whole: it cannot fail halfway
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for group in groups.values():
            self.saved.append((group, torch.cat([tensor.reshape(-1) for tensor in group])))

    @torch.no_grad()
    def restore(self) -> bool:
        """Restore everything. Return False if a weight was written without `keep`: such a step cannot be undone."""
        for (owner, key), buffer in zip((*self.copied, *self.replaced), self.buffers, strict=True):
            owner[key] = buffer
        if self.copies:
            torch._foreach_copy_(self.written, self.copies)
        for group, before in reversed(self.saved):
            sizes = [tensor.numel() for tensor in group]
            for tensor, values in zip(group, torch.split(before, sizes), strict=True):
                tensor.copy_(values.view(tensor.shape))
        for part, value in zip(self.with_values, self.values, strict=True):
            part.set_extra_state(value)
        for learner, known in zip(self.learners, self.known, strict=True):
            for parameter in learner.optimizer.state.keys() - known:
                del learner.optimizer.state[parameter]  # created by the failed step, perhaps incomplete
        self.generator.set_state(self.random)
        safe = {tensor.data_ptr() for group, _ in self.saved for tensor in group}
        self.saved = []
        moved = zip(self.parameters, self.versions, strict=True)
        return all(p._version == version or p.data_ptr() in safe for p, version in moved)


class Stateful(nn.Module):
    """Base of `Adapter`: a model, everything that a method stores next to it, and steps that can be undone.

    The state consists of parameters, buffers, the moments of learners, the extra state of submodules, and
    `self.generator`. All of these are found automatically.
    """

    name: ClassVar[str]
    settings: BaseSettings
    model: VisionModel
    generator: torch.Generator
    _undo: Undo
    _source: tuple[dict[str, Tensor], Values]
    """The state that `reset` restores, except for tensors that `warm_up` has changed: these are in `_warm`."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = self.images = 0
        self.diagnostics: dict[str, Tensor | float | bool] = {}
        self.recorded: dict[str, Recorded] = {}  # they write to fixed memory: cleared if state is replaced
        self._warm: dict[str, Tensor] = {}
        self._torn = False

    def learners(self) -> dict[str, Learner]:
        """The optimisers of the method, by attribute name."""
        return {name: module for name, module in self.named_modules() if isinstance(module, Learner)}

    @property
    def skipped(self) -> int:
        """Number of updates left out because a loss or a gradient was not finite."""
        return sum(int(learner.skipped) for learner in self.learners().values())

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that the method trains, by name."""
        chosen = {id(p) for learner in self.learners().values() for p in learner.parameters_}
        return {name: parameter for name, parameter in self.named_parameters() if id(parameter) in chosen}

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next batch depends on."""
        state = tensors_of(self)
        for name, learner in self.learners().items():
            state |= {f"{name}.moments.{key}": value for key, value in moments(learner.optimizer).items()}
        state |= {WARM + name: value for name, value in self._warm.items()}
        return {**state, "generator": self.generator.get_state()}

    def values(self) -> Values:
        """Every plain value that the next batch depends on, ready for JSON."""
        extra = {key: value for key, value in self.state_dict().items() if not isinstance(value, Tensor)}
        return {"batches": self.batches, "images": self.images, **json.loads(json.dumps(extra))}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what `tensors` and `values` returned; a state that does not fit is refused and changes nothing."""
        reason = self._misfit(tensors) or self._put_values(values)
        if reason is not None:
            raise UserError(f"the saved state does not fit {self.model.name}: {reason}", code="other-state")
        for name, parameter in self.named_parameters():
            parameter.copy_(tensors[name])
        for prefix, module in self.named_modules():
            place = prefix + "." if prefix else ""
            for key in module._buffers.keys() - module._non_persistent_buffers_set:
                value = tensors.get(place + key)
                module._buffers[key] = None if value is None else value.to(self.model.device, copy=True)
        for name, learner in self.learners().items():
            load_moments(learner.optimizer, below(f"{name}.moments.", tensors))
        if warm := below(WARM, tensors):
            self._warm = {name: value.cpu().clone() for name, value in warm.items()}
        self.generator.set_state(tensors["generator"].cpu())
        self._torn = False
        self.recorded = {}

    def _misfit(self, tensors: Mapping[str, Tensor]) -> str | None:
        plain = {name: value for name, value in tensors.items() if not name.startswith(WARM)}
        warm = below(WARM, tensors)
        if (reason := _misfit(self, self.generator, plain)) is not None or not warm:
            return reason
        mark = warm.pop(MARK, None)
        if mark is None or (mark.dtype, mark.ndim) != (torch.uint8, 1):
            return f"{WARM}{MARK} is missing or not a fingerprint"
        reason = _misfit(self, self.generator, {**plain, **warm})
        return None if reason is None else f"{WARM}{reason}"

    def _put_values(self, values: Mapping[str, Any]) -> str | None:
        """Restore the plain values of a state; where they do not fit, return the reason and change nothing."""
        own = self.values()
        if values.keys() != own.keys():
            return f"its values differ in {min(values.keys() ^ own.keys())}"
        counts = [values["batches"], values["images"]]
        if not all(type(count) is int and count >= 0 for count in counts):
            return f"it has {counts[0]!r} batches and {counts[1]!r} images"
        reason = None
        for state in (values, own):  # if the new values do not fit, the own ones are restored
            try:
                for name in state.keys() - {"batches", "images"}:
                    module = self.get_submodule(name.rpartition(".")[0])
                    module.set_extra_state(copy.deepcopy(state[name]))
                break
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = f"its values have the wrong type ({type(error).__name__}: {error})"
        if reason is None:
            self.batches, self.images = counts
        return reason

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Copy weights or moments before they are written ahead of the last pass, so that the step can be undone."""
        self._undo.keep(tensors)

    def record(self, name: str, part: Function, *inputs: Tensor, key: Hashable = None) -> dict[str, Tensor]:
        """Run a part of a step, with the setting `cuda_graphs` as a recorded CUDA graph.

        A recording repeats the same kernels on the same memory. So `part` must change tensors in place only, must not
        wait for the host, and must not depend on host values other than `key` (see `core/graphs.py`).
        """
        if not getattr(self.settings, "cuda_graphs", False):
            return part(*inputs)
        return self.recorded.setdefault(name, Recorded(part, self.generator))(key, *inputs)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Run a step as a whole or not at all: if it raises, undo it, or refuse further steps if that fails."""
        self._refuse_torn()
        before, self.diagnostics = self.diagnostics, {}
        self._undo.begin(self.generator)
        try:
            yield
        except BaseException:
            self._torn, self.diagnostics = not self._undo.restore(), before
            raise
        self._undo.saved = []

    def _refuse_torn(self) -> None:
        if self._torn:
            failed = f"a step of {self.name} failed while it was writing its weights"
            raise UserError(f"{failed}: call reset(), or load a saved state", code="torn-state")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for learner in self.learners().values():
            stored = {name: value.to(self.model.device) for name, value in moments(learner.optimizer).items()}
            load_moments(learner.optimizer, stored)
        if self.generator.device != self.model.device:
            self.generator = torch.Generator(self.model.device).manual_seed(self.settings.seed)
            self._source[0]["generator"] = self.generator.get_state()  # its format depends on the device
        self._undo = Undo(self)
        self.recorded = {}
        return self


@runtime_checkable
class Varying(Protocol):
    """A module whose buffers can be None or change their size; the module itself checks values for them."""

    varying: tuple[str, ...]

    def misfit(self, buffers: Mapping[str, Tensor | None]) -> str | None:
        """Return the name of the first buffer with an impossible value, or None."""


def _misfit(module: nn.Module, generator: Generator, tensors: Mapping[str, Tensor]) -> str | None:
    """Return why a state does not fit a module with learners and a generator, or None if it fits."""
    expected = {**tensors_of(module), "generator": generator.get_state()}
    checked: set[str] = set()
    for name, submodule in module.named_modules():
        start = f"{name}." if name else ""
        if isinstance(submodule, Varying):
            checked.update(start + key for key in submodule.varying)
            buffers = {key: tensors.get(start + key) for key in submodule.varying}
            if (key := submodule.misfit(buffers)) is not None:
                return f"{start}{key} has {_shape(tensors.get(start + key))}, which is impossible"
        if isinstance(submodule, Learner):
            start += "moments."
            own = below(start, tensors)
            checked.update(start + key for key in own)
            if (reason := submodule.misfit(own)) is not None:
                return start + reason
    if unknown := [name for name in tensors if name not in expected and name not in checked]:
        return f"it has no tensor {unknown[0]}"
    for name in [name for name in expected if name not in checked]:
        value, other = expected[name], tensors.get(name)
        if other is None:
            return f"{name} is missing"
        if other.shape != value.shape:
            return f"{name} has {_shape(other)}, not {_shape(value)}"
        if other.dtype != value.dtype:
            return f"{name} is {other.dtype}, not {value.dtype}"
    return None


def _shape(value: Tensor | None) -> str:
    return "no value" if value is None else f"shape {tuple(value.shape)}"
