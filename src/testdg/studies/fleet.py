"""`adapt_fleet`: many streams at the same time on a Ray cluster, around one source model.

Each stream has an actor (`Camera`) in a process of its own, which sends news to a mailbox on this machine. `_Fleet`
polls the mailbox, and starts an actor again when its process is lost.
"""

import copy
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from testdg.data.frames import natural
from testdg.errors import UserError, unknown
from testdg.models import VisionModel, load_model
from testdg.models.loading import DEVICES
from testdg.runs.adapt import Draw, Request, Watcher, adapt_frames, check_request, open_request
from testdg.runs.loop import graceful_interrupt
from testdg.runs.pictures import PredictedBatch
from testdg.runs.summary import StreamStatistics
from testdg.studies.engine import Failed, retry_while_busy
from testdg.studies.ray import PATIENCE, POLL_INTERVAL, RETRIES, Cluster, Lost, RayHandle, Sender, import_ray

NEWS_INTERVAL = 1.0  # seconds between two news of a stream: thousands of streams share one mailbox


@dataclass(frozen=True)
class StreamProgress:
    """The progress of a stream: pictures done, and the total if it is known; `began` if it has started or resumed."""

    number: int
    done: int
    total: int | None
    began: bool = False


@dataclass(frozen=True)
class Ended:
    """A stream is complete; its summary is that of `adapt_frames`."""

    number: int
    summary: dict[str, Any]


@dataclass(frozen=True)
class Stopped:
    """A stream was interrupted, and its state is saved."""

    number: int


@dataclass(frozen=True)
class Noted:
    """A note to the user about all streams."""

    text: str


End = Ended | Stopped | Failed
News = StreamProgress | Lost | Noted | End
Notify = Callable[[News], None]


@dataclass(frozen=True, eq=False)
class _Weight:
    """A parameter as an array, which Ray maps into memory and does not copy."""

    array: NDArray[Any]
    requires_grad: bool

    def parameter(self) -> nn.Parameter:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable")  # adapters write to copies
            return nn.Parameter(torch.from_numpy(self.array), self.requires_grad)


class SharedModel:
    """A model with arrays in place of its parameters, ready for Ray's object store.

    `model` makes the model around the arrays in that memory: all processes of a machine share one copy of the weights,
    which must not be written to. Adapters copy the model that they get. On another device, every process has its own
    copy.
    """

    def __init__(self, model: VisionModel) -> None:
        weights: dict[int, Any] = {
            id(one): _Weight(one.detach().cpu().contiguous().numpy(), one.requires_grad) for one in model.parameters()
        }
        self._skeleton = copy.deepcopy(model, weights)

    def model(self) -> VisionModel:
        """The model, around shared memory."""
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

    def run(self, number: int, request: Request, model: SharedModel, mailbox: RayHandle, draw: Draw | None) -> End:
        """Run the stream; errors are returned as `Failed`, never raised."""
        sender = Sender(mailbox)
        watcher = _StreamReporter(number, sender, self._stopped)
        try:
            whole = replace(request, model=model.model())
            return Ended(number, retry_while_busy(lambda: adapt_frames(whole, watcher, draw), PATIENCE))
        except KeyboardInterrupt:
            return Stopped(number)
        except Exception as error:
            return Failed.of(number, error)
        finally:
            sender.flush()  # all news arrive before the end

    def stop(self) -> None:
        """Save the state and end after the present batch."""
        self._stopped.set()


class _StreamReporter(Watcher):
    """Reports the progress of a stream."""

    def __init__(self, number: int, sender: Sender, stopped: threading.Event) -> None:
        self.number, self.sender, self._stopped = number, sender, stopped
        self.total: int | None = None
        self.done, self.last = 0, 0.0

    def started(self, total: int | None, done: int) -> None:
        self.total, self.done = total, done
        self._send(began=True)

    def advanced(self, batch: PredictedBatch, statistics: StreamStatistics) -> None:
        self.done += len(batch.predictions) + len(batch.skipped)
        if time.monotonic() - self.last >= NEWS_INTERVAL:
            self._send()

    def stopped(self) -> bool:
        return self._stopped.is_set()

    def _send(self, *, began: bool = False) -> None:
        self.last = time.monotonic()
        self.sender.send(StreamProgress(self.number, self.done, self.total, began))


def find_streams(request: Request) -> dict[str, Request]:
    """A request for every direct subfolder of the frames; predictions are written into a folder of the same name."""
    frames, out = Path(request.frames), request.out.resolve()
    if not frames.is_dir():
        message = f"{frames} is not a folder: with --engine ray, name one that has a subfolder for every stream"
        raise UserError(message, code="no-such-folder")
    found = [one for one in frames.iterdir() if one.is_dir() and not one.name.startswith(".") and one.resolve() != out]
    if not found:
        message = f"{frames} has no subfolders: with --engine ray, every subfolder is a stream; make some"
        raise UserError(message, code="no-streams")
    return {one.name: _request_of(one, request) for one in sorted(found, key=lambda one: natural(one.name))}


def _request_of(folder: Path, request: Request) -> Request:
    """The request of one stream, with absolute paths, which are valid in every process."""
    name, options = folder.name, request.options
    classes = options.classes.resolve() if isinstance(options.classes, Path) else options.classes
    return replace(
        request,
        frames=folder.resolve(),
        out=request.out.resolve() / name,
        save_state=_inside(request.save_state, name),
        export=_inside(request.export, name),
        options=replace(
            options, classes=classes, source=_inside(options.source), load_state=_inside(options.load_state)
        ),
    )


def _inside(folder: Path | None, name: str = "") -> Path | None:
    return None if folder is None else folder.resolve() / name


def adapt_fleet(
    request: Request,
    *,
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float | None = None,
    notify: Notify = lambda news: None,
    draw: Draw | None = None,
) -> dict[str, End]:
    """Adapt to every subfolder of the frames as to a separate stream, and return how each ended, by its name.

    A stream has an actor, an adapter and a folder in `out`, which must have the same path on all machines. A lost actor
    is started again and resumes from its last saved state; a stream whose actor is lost four times at the same place
    fails. A failure does not stop the other streams. Ctrl-C saves all streams.

    Args:
        request: As for `adapt_frames`; `frames` is the parent of the streams, `out` that of their predictions.
        address: The Ray cluster; that of RAY_ADDRESS, or a new one on this machine, if left out.
        cpus: The share of a core that a stream takes.
        gpus: The share of a GPU that a stream takes; a whole one, where the cluster has some, if left out.
        notify: Called with all news; the number of a stream is its place among the names.
        draw: Draws the figure of each stream.
    """
    if gpus is not None and not 0 <= gpus <= 1:
        raise UserError(f"--gpus must be a share of a GPU from 0 to 1; got {gpus:g}", code="wrong-value")
    if not 0 < cpus < float("inf"):
        raise UserError(f"--cpus must be more than 0; got {cpus:g}", code="wrong-value")
    import_ray()
    requests = find_streams(request)
    shared = _load_shared(next(iter(requests.values())), notify)
    cluster = Cluster(address)
    try:
        share = 0.0 if request.options.device == "cpu" and not gpus else cluster.choose_gpus(gpus, "--gpus")
        _check_room(cluster, request, len(requests), cpus, share)
        ends = _Fleet(
            cluster, list(requests.values()), shared, {"num_cpus": cpus, "num_gpus": share}, notify, draw
        ).run()
    finally:
        cluster.close()
    return dict(zip(requests, ends, strict=True))


def _load_shared(request: Request, notify: Notify) -> SharedModel:
    """Load the model, once for all streams; mistakes in the options are reported before any stream begins."""
    check_request(request)
    if request.options.device not in DEVICES:
        raise unknown("device", request.options.device, DEVICES)
    model = load_model(request.model)
    for note in open_request(replace(request, model=model, options=replace(request.options, device="cpu"))).notes:
        notify(Noted(note))
    return SharedModel(model)


def _check_room(cluster: Cluster, request: Request, streams: int, cpus: float, gpus: float) -> None:
    """Refuse more endless streams than the cluster has room for: the others would wait for ever."""
    room = cluster.room(cpus, gpus)
    if room == 0:
        message = f"no machine of the cluster has {cpus:g} cores and {gpus:g} GPUs: use less --cpus or --gpus"
        raise UserError(message, code="too-few-machines")
    if request.follow and request.idle is None and room < streams:
        reason = f"{streams} streams are followed at the same time, and the cluster has room for {room}"
        message = f"{reason}: add machines, or use less --cpus or --gpus, as in --cpus {room * cpus / streams:.2g}"
        raise UserError(message, code="too-few-machines")


class _Fleet:
    """The actors of all streams; a lost one is started again."""

    def __init__(
        self,
        cluster: Cluster,
        requests: list[Request],
        model: SharedModel,
        needs: dict[str, float],
        notify: Notify,
        draw: Draw | None = None,
    ) -> None:
        self.cluster, self.ray = cluster, cluster.ray
        self.requests, self.notify, self.draw = requests, notify, draw
        self.model, self.mailbox = self.ray.put(model), cluster.mailbox()
        self.actor = self.ray.remote(Camera).options(max_concurrency=2, **needs)
        self.tasks: dict[RayHandle, int] = {}
        self.actors: dict[int, RayHandle] = {}
        self.places: dict[int, int] = {}  # pictures that were done when a stream started last
        self.losses = [0] * len(requests)
        self.ends: dict[int, End] = {}
        self.stopping = False

    def run(self) -> list[End]:
        """Run all streams to their ends; after an interrupt, those that have begun save their states."""
        try:
            with graceful_interrupt() as stop:
                for number in range(len(self.requests)):
                    self._start(number)
                while self.tasks:
                    if stop() and not self.stopping:
                        self._stop()
                    ended, _ = self.ray.wait(list(self.tasks), timeout=POLL_INTERVAL)
                    self._receive()
                    for task in ended:
                        self._end(task, self.tasks.pop(task))
        finally:
            for actor in self.actors.values():
                self.ray.kill(actor)
        return [self.ends[number] for number in range(len(self.requests))]

    def _start(self, number: int) -> None:
        actor = self.actors[number] = self.actor.remote()
        task = actor.run.remote(number, replace(self.requests[number], model=""), self.model, self.mailbox, self.draw)
        self.tasks[task] = number

    def _stop(self) -> None:
        """Stop the streams that have begun, which save their states; end the others."""
        self.stopping = True
        self._receive()
        for number, actor in self.actors.items():
            if number in self.places:
                actor.stop.remote()
            else:
                self.ray.kill(actor)

    def _receive(self) -> None:
        for news in self.ray.get(self.mailbox.empty.remote()):
            if news.began:
                if news.done > self.places.get(news.number, -1):
                    self.losses[news.number] = 0
                self.places[news.number] = news.done
            self.notify(news)

    def _end(self, task: RayHandle, number: int) -> None:
        end: End | Lost = self.cluster.result(task, number)
        actor = self.actors.pop(number)
        self.ray.kill(actor)  # frees its place at once; an actor that cannot be reached must not continue
        if isinstance(end, Lost):
            self.losses[number] += 1
            if self.stopping:
                end = Stopped(number)
            elif self.losses[number] > RETRIES:
                end = end.failure(self.losses[number])
            else:
                self.notify(end)
                self._start(number)
                return
        self.ends[number] = end
        self.notify(end)
