"""The group: processes that share a stream, what they tell each other, and what happens where one of them ends."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from testdg.errors import UserError

PATIENCE = 1800.0
"""Seconds to wait for a process that is alive and says nothing; one that has ended is noticed at once."""
T = TypeVar("T")


class Lost(UserError):
    """The group has ended: a process of it did, or failed in the middle of a batch."""


class ToldElsewhere(UserError):
    """A mistake that the first process tells the user."""


@dataclass
class Group:
    """This process among the others."""

    rank: int
    size: int
    device: str
    handle: Any
    own: bool
    """Whether nobody but us uses torch.distributed here."""
    ended: str = ""

    def end(self, reason: str) -> None:
        """Let no batch pass any more: the processes are no longer at the same place. The others notice."""
        if not self.ended:
            self.ended = reason
            dist.destroy_process_group(self.handle)
            self.handle = None

    def require(self) -> None:
        """Refuse to go on in a group that has ended."""
        if self.ended:
            raise Lost(self.ended)


_joined: list[Group] = []


def join(device: str = "auto", patience: float = PATIENCE) -> None:
    """Share batches with the other processes of `torchrun`, or of the group that torch.distributed has already.

    From here on every process hands the same whole batch to `adapter(images)`, predicts and learns on its share, and
    gets the whole prediction. A program that is alone stays alone.

    Args:
        device: Where the models lie: "cpu" (gloo) or "cuda" (nccl; each process takes a GPU); "auto" takes GPUs where
            there are any.
        patience: Seconds to wait for a process that is alive and says nothing.

    Examples:
        >>> from testdg import distributed
        >>> distributed.join()
        >>> distributed.rank(), distributed.size()
        (0, 1)
    """
    own, launched = not dist.is_initialized(), int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    if _joined or (own and not launched):
        return
    device, wait = _take_device(device), timedelta(seconds=patience)
    try:
        if own:
            dist.init_process_group("gloo", timeout=wait)
        if dist.get_world_size() > 1:
            backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            handle = dist.new_group(backend=backend, timeout=wait)
            _joined.append(Group(dist.get_rank(), dist.get_world_size(), device, handle, own))
    except (RuntimeError, ValueError) as error:
        raise Lost(f"the processes did not find each other: {_reason(error)}; start the command again") from error


def _take_device(device: str) -> str:
    """Give this process a GPU of its own, where GPUs are meant."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise UserError(f"several processes share a stream on cpu or cuda; got {device}: use --device cpu")
    if device == "cuda":
        wanted, there = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if wanted > there:
            remedy = f"start at most {there} on this machine (--nproc-per-node), or use --device cpu"
            raise UserError(f"{wanted} processes want a GPU each, and there are {there}: {remedy}")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())))
    return device


def leave() -> None:
    """Share no batches any more: every process is alone again."""
    for group in _joined:
        with suppress(Lost):
            collect(dist.barrier)
        group.end("the group was left")
        if group.own:
            dist.destroy_process_group()
    _joined.clear()


def current() -> Group | None:
    """The group of this process; None where it is alone."""
    return _joined[0] if _joined else None


def rank() -> int:
    """The number of this process, from 0; the first writes."""
    return _joined[0].rank if _joined else 0


def size() -> int:
    """How many processes share a batch."""
    return _joined[0].size if _joined else 1


def collect(collective: Callable[..., Any], *inputs: Any, **options: Any) -> None:
    """Call a function of torch.distributed in the group; where a process has ended, the group does."""
    group = _joined[0]
    group.require()
    try:
        collective(*inputs, group=group.handle, **options)
    except RuntimeError as error:
        told = f"another of the {group.size} processes has ended ({_reason(error)})"
        group.end(f"{told}: start the same command again, and it goes on from the last saved state")
        raise Lost(group.ended) from error


def _reason(error: Exception) -> str:
    """The beginning of what torch says, without the place in its own files."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return line.partition("] ")[2].partition(". ")[0] if line.startswith("[") else line


# What the processes tell each other; they run the same code on data of the first


def from_first(make: Callable[[], T]) -> T:
    """Let the first process make a plain value, and give it to all; so with a mistake of the user's."""
    if size() == 1:
        return make()
    if rank():
        told = _told_by(0)
        if "error" in told:
            raise ToldElsewhere(told["error"])
        return told["value"]  # type: ignore[no-any-return]
    try:
        value = make()
    except UserError as error:
        _told_by(0, {"error": str(error)})
        raise
    _told_by(0, {"value": value})
    return value


def in_turn(work: Callable[[], T]) -> T:
    """Do the same in every process, in the first one first, which leaves files for the others; all succeed or none."""
    done: list[T] = []
    from_first(lambda: done.append(work()))
    sentence = ""
    if rank():
        try:
            done.append(work())
        except UserError as error:
            sentence = str(error)
    for number, other in enumerate(from_all(sentence)):
        if other:
            raise (ToldElsewhere if rank() else UserError)(f"process {number} of {size()}: {other}")
    return done[0]


def from_all(value: T) -> list[T]:
    """A plain value of every process, in their order."""
    return [value] if size() == 1 else [_told_by(number, value) for number in range(size())]


def require_same(value: Any, sentence: str) -> None:
    """Refuse where processes do not have the same value."""
    if len({json.dumps(one) for one in from_all(value)}) > 1:
        raise UserError(sentence)


def in_any(flag: bool) -> bool:
    """Whether a flag is up in any process."""
    if size() == 1:
        return flag
    found = torch.tensor(int(flag))
    collect(dist.all_reduce, found)
    return bool(found)


def tensors_of_first(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the first process, by name, on the host."""
    kinds = from_first(lambda: {name: (str(value.dtype), list(value.shape)) for name, value in tensors.items()})
    found: dict[str, Tensor] = {}
    for name, (dtype, shape) in kinds.items():
        empty = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        found[name] = empty if rank() else tensors[name].detach().cpu().contiguous()
        if empty.numel():
            collect(dist.broadcast, found[name].reshape(-1).view(torch.uint8), src=0)
    return found


def _told_by(number: int, value: Any = None) -> Any:
    """The plain value that one process has, which tells it to the others."""
    mine = number == rank()
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    length = torch.tensor(len(data))
    collect(dist.broadcast, length, src=number)
    data = data if mine else torch.empty(int(length), dtype=torch.uint8)
    collect(dist.broadcast, data, src=number)
    return value if mine else json.loads(bytes(data.tolist()))
