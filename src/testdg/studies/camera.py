"""One stream of a fleet, in a process of its own somewhere on a Ray cluster, and the model that it is sent."""

import copy
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from testdg.errors import UserError
from testdg.models import VisionModel
from testdg.runs.adapt import Draw, Request, Watcher, adapt_frames
from testdg.runs.pictures import Answered
from testdg.runs.summary import Tally
from testdg.studies.engine import Failed, patiently
from testdg.studies.ray_cluster import PATIENCE

EVERY = 1.0  # seconds between two news of a stream: thousands of streams have one mailbox


@dataclass(frozen=True)
class Seen:
    """How far a stream is: pictures behind it, of so many where that is known; `began` where it starts or goes on."""

    number: int
    done: int
    total: int | None
    began: bool = False


@dataclass(frozen=True)
class Ended:
    """A stream came to its end; its summary is that of `adapt_frames`."""

    number: int
    summary: dict[str, Any]


@dataclass(frozen=True)
class Stopped:
    """A stream was asked to stop, and is saved."""

    number: int


End = Ended | Stopped | Failed


@dataclass(frozen=True, eq=False)
class _Weight:
    """A parameter as an array, which Ray maps into memory and does not copy."""

    array: NDArray[Any]
    requires_grad: bool

    def parameter(self) -> nn.Parameter:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable")  # nobody writes: adapters have copies
            return nn.Parameter(torch.from_numpy(self.array), self.requires_grad)


class SharedModel:
    """A model with arrays in place of its parameters, ready for Ray's object store.

    `put_together` makes the model around the arrays as they lie there: the processes of a machine have one copy of the
    weights together, which must not be written to. Adapters copy the model that they are given. On another device,
    every process has a copy of its own.
    """

    def __init__(self, model: VisionModel) -> None:
        weights: dict[int, Any] = {
            id(one): _Weight(one.detach().cpu().contiguous().numpy(), one.requires_grad) for one in model.parameters()
        }
        self._skeleton = copy.deepcopy(model, weights)

    def put_together(self) -> VisionModel:
        """Make the model, around memory that it shares."""
        made: dict[int, nn.Parameter] = {}
        for module in self._skeleton.modules():
            for name, weight in module._parameters.items():
                if isinstance(weight, _Weight):
                    module._parameters[name] = made.setdefault(id(weight), weight.parameter())
        return self._skeleton


class Camera:
    """The actor of one stream: `run` takes one of its two threads, `stop` the other."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def run(self, number: int, request: Request, model: SharedModel, mailbox: Any, draw: Draw | None) -> End:
        """Run the stream; whatever goes wrong is told, not raised."""
        import ray

        watcher = _Teller(number, mailbox, self._stopped)
        try:
            whole = replace(request, model=model.put_together())
            return Ended(number, patiently(lambda: adapt_frames(whole, watcher, draw), PATIENCE))
        except KeyboardInterrupt:
            return Stopped(number)
        except UserError as error:
            return Failed(number, str(error))
        except Exception as error:
            return Failed(number, f"{type(error).__name__}: {error}", traceback.format_exc())
        finally:
            ray.get(watcher.sent)  # all news are there before the end is

    def stop(self) -> None:
        """Let the stream save and end after the batch at hand."""
        self._stopped.set()


class _Teller(Watcher):
    """Tells how far a stream is, without waiting for the mailbox."""

    def __init__(self, number: int, mailbox: Any, stopped: threading.Event) -> None:
        self.number, self.mailbox, self._stopped = number, mailbox, stopped
        self.sent: list[Any] = []
        self.total: int | None = None
        self.done, self.last = 0, 0.0

    def started(self, total: int | None, done: int) -> None:
        """Tell where it starts."""
        self.total, self.done = total, done
        self._tell(began=True)

    def answered(self, answered: Answered, tally: Tally) -> None:
        """Tell how far it is, now and then."""
        self.done += len(answered.predictions) + len(answered.skipped)
        if time.monotonic() - self.last >= EVERY:
            self._tell()

    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopped.is_set()

    def _tell(self, *, began: bool = False) -> None:
        self.last = time.monotonic()
        self.sent[:] = [self.mailbox.put.remote(Seen(self.number, self.done, self.total, began))]
