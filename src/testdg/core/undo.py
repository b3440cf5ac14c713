"""A step that fails leaves no trace: what it had changed by then comes back, bit for bit."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from testdg.core.learner import Learner


class Undo:
    """What a step may change before its last pass, as it was when the step began.

    Buffers and plain values are copied, since they are small; a module names large ones that it replaces, or writes
    after the last pass only, in `uncopied`. Weights and moments are never copied by themselves: a step writes them
    after its last pass, or hands them to `keep` first.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())
        self.learners = [part for part in module.modules() if isinstance(part, Learner)]
        self.tellers = [part for part in module.modules() if type(part).get_extra_state is not TELLS_NOTHING]
        self.copied = list(_buffers(module, copied=True))
        self.replaced = list(_buffers(module, copied=False))
        self.copies: list[Tensor] = []
        self.kept: list[tuple[list[Tensor], Tensor]] = []  # tensors, and their values one after the other

    @torch.no_grad()
    def begin(self, generator: Generator) -> None:
        """Note the state as it is."""
        self.generator, self.random = generator, generator.get_state()
        self.values = [copy.deepcopy(part.get_extra_state()) for part in self.tellers]
        self.versions = [parameter._version for parameter in self.parameters]
        self.known = [set(learner.optimizer.state) for learner in self.learners]
        self.places = [owner[key] for owner, key in (*self.copied, *self.replaced)]
        self.written = [place for place in self.places[: len(self.copied)] if place is not None]
        if [_kind(place) for place in self.written] != [_kind(copied) for copied in self.copies]:
            self.copies = [place.clone() for place in self.written]
        elif self.copies:
            torch._foreach_copy_(self.copies, self.written)

    @torch.no_grad()
    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors that are about to be written although a pass is still to come."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # nothing is written now, and what is launched as a whole cannot fail half way
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        self.kept += [(group, torch.cat([tensor.reshape(-1) for tensor in group])) for group in groups.values()]

    def forget(self) -> None:
        """Let go of what was kept: the step has succeeded."""
        self.kept = []

    @torch.no_grad()
    def put_back(self) -> bool:
        """Bring everything back; False where weights were written that nobody had kept."""
        for (owner, key), place in zip((*self.copied, *self.replaced), self.places, strict=True):
            owner[key] = place
        if self.copies:
            torch._foreach_copy_(self.written, self.copies)
        for group, before in reversed(self.kept):
            sizes = [tensor.numel() for tensor in group]
            for tensor, part in zip(group, torch.split(before, sizes), strict=True):
                tensor.copy_(part.view(tensor.shape))
        for teller, value in zip(self.tellers, self.values, strict=True):
            teller.set_extra_state(value)
        for learner, known in zip(self.learners, self.known, strict=True):
            learner.drop_moments(known)
        self.generator.set_state(self.random)
        safe = {tensor.data_ptr() for group, _ in self.kept for tensor in group}
        self.forget()
        moved = zip(self.parameters, self.versions, strict=True)
        return all(p._version == version or p.data_ptr() in safe for p, version in moved)


TELLS_NOTHING = nn.Module.get_extra_state


def _buffers(module: nn.Module, *, copied: bool) -> Iterable[tuple[dict[str, Any], str]]:
    """The places of a module's buffers: those that are copied, or the others."""
    for part in module.modules():
        for key in sorted(part._buffers.keys() - part._non_persistent_buffers_set):
            if copied == (key not in getattr(part, "uncopied", ())):
                yield part._buffers, key


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device
