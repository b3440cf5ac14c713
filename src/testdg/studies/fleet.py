"""`adapt_fleet`: many streams at the same time on a Ray cluster, an actor each, around one source model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testdg.data.frames import natural
from testdg.errors import UserError, unknown
from testdg.models import load_model
from testdg.models.device import DEVICES
from testdg.runs.adapt import Draw, Request, check_request, open_request
from testdg.runs.loop import graceful_interrupt
from testdg.studies.camera import Camera, End, Seen, SharedModel, Stopped
from testdg.studies.engine import Failed
from testdg.studies.ray_cluster import RETRIES, TICK, Cluster, import_ray


@dataclass(frozen=True)
class Lost:
    """The process of a stream is gone; another one goes on from the last saved state."""

    number: int


@dataclass(frozen=True)
class Noted:
    """Something that the user should know, of all streams."""

    text: str


News = Seen | Lost | Noted | End
Tell = Callable[[News], None]


def find_streams(request: Request) -> dict[str, Request]:
    """A request for every direct subfolder of the frames: its predictions go into a folder of its name."""
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
    """The request of one stream, with paths that mean the same wherever a process is started."""
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
    tell: Tell = lambda news: None,
    draw: Draw | None = None,
) -> dict[str, End]:
    """Adapt to every subfolder of the frames as to a stream of its own, and give what became of each by its name.

    A stream has an actor, an adapter and a folder in `out`, which all machines must see under the same path. An actor
    that is lost is started again, and goes on from its last saved state; one that is lost four times at the same place
    fails. What fails does not stop the others. Ctrl-C saves all streams.

    Args:
        request: As for `adapt_frames`; `frames` is the parent of the streams, `out` that of their predictions.
        address: The Ray cluster; that of RAY_ADDRESS, or a new one on this machine, if left out.
        cpus: The share of a core that a stream takes.
        gpus: The share of a GPU that a stream takes; a whole one, where the cluster has some, if left out.
        tell: Is told how it goes; a stream is named by its place among the names.
        draw: Draws the figure of each stream.
    """
    if gpus is not None and not 0 <= gpus <= 1:
        raise UserError(f"--gpus must be a share of a GPU from 0 to 1; got {gpus:g}", code="wrong-value")
    if not 0 < cpus < float("inf"):
        raise UserError(f"--cpus must be more than 0; got {cpus:g}", code="wrong-value")
    import_ray()
    requests = find_streams(request)
    shared = _prepare(next(iter(requests.values())), tell)
    cluster = Cluster(address)
    try:
        share = 0.0 if request.options.device == "cpu" and not gpus else cluster.choose_gpus(gpus, "--gpus")
        _check_room(cluster, request, len(requests), cpus, share)
        ends = _Fleet(cluster, list(requests.values()), shared, {"num_cpus": cpus, "num_gpus": share}, tell, draw).run()
    finally:
        cluster.close()
    return dict(zip(requests, ends, strict=True))


def _prepare(request: Request, tell: Tell) -> SharedModel:
    """Load the model, once for all; what is wrong with the choices is told here, before any stream begins."""
    check_request(request)
    if request.options.device not in DEVICES:
        raise unknown("device", request.options.device, DEVICES)
    model = load_model(request.model)
    for note in open_request(replace(request, model=model, options=replace(request.options, device="cpu"))).notes:
        tell(Noted(note))
    return SharedModel(model)


def _check_room(cluster: Cluster, request: Request, streams: int, cpus: float, gpus: float) -> None:
    """Streams that wait for a free place would wait for ever for those that do not end."""
    room = cluster.room(cpus, gpus)
    if room == 0:
        message = f"no machine of the cluster has {cpus:g} cores and {gpus:g} GPUs: use less --cpus or --gpus"
        raise UserError(message, code="too-few-machines")
    if request.follow and request.idle is None and room < streams:
        told = f"{streams} streams are followed at the same time, and the cluster has room for {room}"
        message = f"{told}: add machines, or use less --cpus or --gpus, as in --cpus {room * cpus / streams:.2g}"
        raise UserError(message, code="too-few-machines")


class _Fleet:
    """The actors of all streams, started again where they are lost."""

    def __init__(
        self,
        cluster: Cluster,
        requests: list[Request],
        model: SharedModel,
        needs: dict[str, float],
        tell: Tell,
        draw: Draw | None = None,
    ) -> None:
        self.ray, self.requests, self.tell, self.draw = cluster.ray, requests, tell, draw
        self.model, self.mailbox = self.ray.put(model), cluster.mailbox()
        self.actor = self.ray.remote(Camera).options(max_concurrency=2, **needs)
        self.tasks: dict[Any, int] = {}
        self.actors: dict[int, Any] = {}
        self.places: dict[int, int] = {}  # pictures that were done when a stream last began
        self.losses = [0] * len(requests)
        self.ends: dict[int, End] = {}
        self.stopping = False

    def run(self) -> list[End]:
        """Run all streams to their ends; asked to stop, let those that have begun save."""
        try:
            with graceful_interrupt() as stop:
                for number in range(len(self.requests)):
                    self._start(number)
                while self.tasks:
                    if stop() and not self.stopping:
                        self._stop()
                    ended, _ = self.ray.wait(list(self.tasks), timeout=TICK)
                    self._hear()
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
        """Ask the streams that have begun to save and end; others have nothing to save."""
        self.stopping = True
        self._hear()
        for number, actor in self.actors.items():
            if number in self.places:
                actor.stop.remote()
            else:
                self.ray.kill(actor)

    def _hear(self) -> None:
        for news in self.ray.get(self.mailbox.empty.remote()):
            if news.began:
                if news.done > self.places.get(news.number, -1):
                    self.losses[news.number] = 0
                self.places[news.number] = news.done
            self.tell(news)

    def _end(self, task: Any, number: int) -> None:
        end = self._result(task, number)
        self.ray.kill(self.actors.pop(number))  # its place is free at once; one that cannot be reached must not go on
        if end is None:
            self.tell(Lost(number))
            self._start(number)
            return
        self.ends[number] = end
        self.tell(end)

    def _result(self, task: Any, number: int) -> End | None:
        """How a stream ended; None where its process was lost, and another one should go on."""
        try:
            end: End = self.ray.get(task)
            return end
        except self.ray.exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            return Failed(number, f"it could not begin on its machine: {last}", f"{error}\n")
        except self.ray.exceptions.RayError as error:
            if self.stopping:
                return Stopped(number)
            self.losses[number] += 1
            if self.losses[number] <= RETRIES:
                return None
            told = f"its machine or process was lost {self.losses[number]} times at the same place"
            remedy = "look at the memory that is left, and start the command again"
            return Failed(number, f"{told} ({type(error).__name__}): {remedy}")
