"""Ray: a cluster whose machines may join and leave, and the engine that computes runs on it."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from testdg import registry
from testdg.errors import UserError
from testdg.files import cache_folder, write_files
from testdg.runs.session import open_model
from testdg.spec import RunSpec
from testdg.studies.engine import Complete, Failed, News, run_one
from testdg.studies.storage import Out

RETRIES = 3  # how many times work is restarted after its machine or process was lost
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 3.0, 15.0  # seconds to connect to an address, and for its cluster to answer
PATIENCE = 120.0  # seconds to wait for a folder that a lost process may still have locked
POLL_INTERVAL = 0.2  # seconds between two polls for news
_PASSED_ON = ("OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA", registry.VARIABLE)
"""Environment variables for the processes of the cluster: those that torch reads on import, and the plugins."""
RayHandle = Any
"""An actor, or the future result of a task: Ray gives them no types."""
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}


class Cluster:
    """The Ray cluster of `address`, of RAY_ADDRESS, or a new one on this machine."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.ray = import_ray()
        self._ours = False
        self.connect()

    def connect(self) -> None:
        """Connect to the cluster, unless this process is connected to one."""
        if self.ray.is_initialized():
            return
        options: dict[str, Any] = dict(_QUIET)
        if self.address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options["include_dashboard"] = False
        else:
            check_address(self.address)
        passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        self.ray.init(address=self.address, runtime_env={"env_vars": passed_on}, **options)
        self._ours = True

    def close(self) -> None:
        """Disconnect from the cluster; a cluster that was started here is shut down."""
        if self._ours:
            self.ray.shutdown()
            self._ours = False

    def nodes(self) -> list[tuple[float, float]]:
        """Cores and GPUs of every machine."""
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in alive]

    def room(self, cpus: float, gpus: float) -> int:
        """How many processes with these shares of a core and a GPU the cluster can run at the same time."""
        found = (min(cores / cpus, most / gpus if gpus else math.inf) for cores, most in self.nodes())
        return sum(math.floor(number + 1e-6) for number in found)

    def choose_gpus(self, requested: float | None, option: str, jobs: int = 1) -> float:
        """GPUs per run: the request, if a machine has as many; by default 1 / `jobs`, or 0 if there are none."""
        most = max(gpus for _, gpus in self.nodes())
        if requested is None:
            return math.floor(1e4 / jobs) / 1e4 if most else 0.0  # Ray counts in steps of 0.0001
        if requested > most:
            message = f"no machine of the cluster has {requested:g} GPUs, the maximum is {most:g}: lower {option}"
            raise UserError(message, code="too-few-machines")
        return requested

    def mailbox(self) -> RayHandle:
        """An actor that collects news. It runs on this machine, because other machines may be lost."""
        strategies = self.ray.util.scheduling_strategies
        here = strategies.NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=False)
        return self.ray.remote(_Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()

    def result(self, task: RayHandle, number: int) -> Any:
        """What a task returned. `Lost` if its machine or process was lost; `Failed` if it could not start."""
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            return Failed(number, f"it could not start on its machine: {last}", f"{error}\n")
        except self.ray.exceptions.RayError as error:
            return Lost(number, type(error).__name__)


@dataclass(frozen=True)
class Lost:
    """The process of a run or stream was lost, perhaps with its machine. Its last saved state can be resumed."""

    number: int
    error: str = ""
    """The name of Ray's exception."""

    def failure(self, times: int) -> Failed:
        reason = f"its machine or process was lost {times} times ({self.error})"
        return Failed(self.number, f"{reason}: check the free memory, and start the command again")


class _Mailbox:
    """An actor that collects news until they are fetched."""

    def __init__(self) -> None:
        self.news: list[Any] = []

    def put(self, news: Any) -> None:
        self.news.append(news)

    def empty(self) -> list[Any]:
        """Remove and return all news."""
        news, self.news = self.news, []
        return news


class Sender:
    """Sends news to a mailbox without waiting: while a task waits, Ray would give its core to another task."""

    def __init__(self, mailbox: RayHandle) -> None:
        self.mailbox, self.last = mailbox, None

    def send(self, news: object) -> None:
        self.last = self.mailbox.put.remote(news)

    def flush(self) -> None:
        """Wait until all news have arrived."""
        import ray

        if self.last is not None:
            ray.get(self.last)


def import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'testdg[ray]'", code="not-installed") from error
    return ray


def check_address(address: str) -> None:
    """Refuse an address where no cluster answers; Ray itself would wait for minutes.

    A separate process tries to connect, because it can be ended after a timeout.
    """
    remedy = "start one there with `ray start --head`, or leave out --address"
    if address != "auto":
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
            message = f"a Ray address is HOST:PORT, ray://HOST:PORT or auto; got {address!r}"
            raise UserError(message, code="wrong-address")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
        except OSError as error:
            message = f"no Ray cluster answers at {address} ({error.strerror or error}): {remedy}"
            raise UserError(message, code="no-cluster") from error
    script = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"
    try:
        subprocess.run([sys.executable, "-c", script, address], timeout=ANSWER_TIMEOUT, capture_output=True, check=True)
    except subprocess.TimeoutExpired as error:
        message = f"no Ray cluster answers at {address} within {ANSWER_TIMEOUT:.0f} seconds: {remedy}"
        raise UserError(message, code="no-cluster") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        message = f"the Ray cluster at {address} cannot be used: {' '.join(reason)}; {remedy}"
        raise UserError(message, code="no-cluster") from error


class Ray:
    """Computes runs on a Ray cluster: that of `address`, of RAY_ADDRESS, or a new one on this machine.

    A run takes one core and, unless its device is the CPU, `gpus` GPUs. By default, `jobs` runs share a GPU.

    If a machine is lost, Ray restarts its runs on another one, up to `RETRIES` times. A restarted run resumes from its
    last saved state if `out` is on a shared file system, and otherwise begins again.
    """

    def __init__(self, address: str | None = None, *, jobs: int = 1, gpus: float | None = None) -> None:
        if jobs < 1:
            raise UserError(f"jobs must be at least 1; got {jobs}", code="wrong-jobs")
        if gpus is not None and (gpus < 0 or (gpus > 1 and gpus % 1)):
            message = f"--gpus-per-cell must be a share from 0 to 1, or a whole number; got {gpus:g}"
            raise UserError(message, code="wrong-value")
        self.cluster = Cluster(address)
        self._ray = self.cluster.ray
        try:
            self.gpus = self.cluster.choose_gpus(gpus, "--gpus-per-cell", jobs)
        except UserError:
            self.close()
            raise

    @property
    def jobs(self) -> int:
        """Runs that the cluster can compute at the same time."""
        return max(1, self.cluster.room(1, self.gpus))

    def run(self, specs: Sequence[RunSpec], out: Out) -> Generator[News, None, None]:
        """Compute all runs and yield their news; closing the generator cancels them.

        Cancelled runs resume from their last saved state when they are started again.

        A run flushes its news before it returns, and the mailbox is emptied after `wait`: all news of a run are yielded
        before its end. News of a run that has ended already, such as late ones of a lost process, are dropped.
        """
        self.cluster.connect()
        waiting: dict[RayHandle, int] = {}
        try:
            mailbox = self.cluster.mailbox()
            waiting.update(self._begin(specs, out, mailbox))
            while waiting:
                ended, _ = self._ray.wait(list(waiting), timeout=POLL_INTERVAL)
                for news in self._ray.get(mailbox.empty.remote()):
                    if news.number in waiting.values():
                        yield news
                for task in ended:
                    end = self.cluster.result(task, waiting.pop(task))
                    yield end.failure(RETRIES + 1) if isinstance(end, Lost) else end
        finally:
            for task in waiting:
                self._ray.cancel(task, force=True)
            self.close()

    def _begin(self, specs: Sequence[RunSpec], out: Out, mailbox: RayHandle) -> dict[RayHandle, int]:
        """Submit all runs; the cluster queues them until a machine has room. A model is sent once, not once per run."""
        setups = dict.fromkeys(spec.setup for spec in specs)
        models = {setup: self._ray.put(pack_model(setup)) for setup in setups}
        place = out.absolute() if isinstance(out, Path) else out
        work = self._ray.remote(_work)
        tasks = {}
        for number, spec in enumerate(specs):
            needs = {"num_cpus": 1, "num_gpus": 0 if spec.device == "cpu" else self.gpus, "max_retries": RETRIES}
            task = work.options(**needs, name=str(spec))
            tasks[task.remote(number, _absolute(spec), place, models[spec.setup], mailbox)] = number
        return tasks

    def close(self) -> None:
        self.cluster.close()


def _absolute(spec: RunSpec) -> RunSpec:
    """The run with absolute paths: processes of the cluster have another working directory."""
    paths = {key: getattr(spec, key) for key in ("data", "source", "subset")}
    given = {key: path for key, path in paths.items() if path and (key != "subset" or Path(path).is_file())}
    return msgspec.structs.replace(spec, **{key: os.path.abspath(path) for key, path in given.items()})


def _work(number: int, spec: RunSpec, out: Out, model: SentModel | None, mailbox: RayHandle) -> Complete | Failed:
    """Compute one run on a machine of the cluster."""
    if model is not None:
        spec = msgspec.structs.replace(spec, model=str(model.unpack()))
    sender = Sender(mailbox)
    end = run_one(number, spec, out, sender.send, PATIENCE)
    sender.flush()  # all news arrive before the end
    return end


@dataclass(frozen=True)
class SentModel:
    """The file or folder of a model as bytes: every machine adapts exactly the same model."""

    name: str
    files: dict[str, bytes]
    """Contents by path in the folder; the path is `.` for a single file."""

    def unpack(self) -> Path:
        """Write the files to the cache of this machine, unless they are there, and return their path.

        The folder is named after the contents and renamed when it is complete: processes that unpack the same model at
        the same time never see part of it.
        """
        digest = hashlib.blake2b(digest_size=8)
        for path, content in sorted(self.files.items()):
            digest.update(f"{path} {len(content)} ".encode() + content)
        parent = cache_folder() / "sent-models"
        home = parent / digest.hexdigest()
        if not home.exists():
            parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="new-", dir=parent) as place:
                write_files(Path(place) / "model" / self.name, self.files)
                if not home.exists():
                    (Path(place) / "model").rename(home)
        return home / self.name


def pack_model(setup: RunSpec) -> SentModel | None:
    """The model of a run as bytes; None if every machine downloads it from the hub or from timm.

    The model of an embedded benchmark is trained now, unless `prepare` trained it.
    """
    source = cache_folder() / open_model(setup, "cpu").name if setup.model is None else Path(setup.model).absolute()
    if not source.exists():
        return None
    files = (path for path in (source, *source.rglob("*")) if path.is_file())
    return SentModel(source.name, {path.relative_to(source).as_posix(): path.read_bytes() for path in files})
