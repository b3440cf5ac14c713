"""Ray: cells on the machines of a cluster, which may come and go."""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from testdg.errors import UserError
from testdg.experiments.engine import Complete, Failed, News, Running, run_cell
from testdg.experiments.grid import Cell
from testdg.experiments.sent_model import SentModel, pack_model, unpacked
from testdg.experiments.storage import Out

RETRIES = 3  # a cell begins anew when its machine or its process is lost
KNOCK, ANSWER = 3.0, 15.0  # seconds for an address to accept a connection, and for the cluster to answer
PATIENCE = 120.0  # seconds for the lock of a lost machine to end
_TICK = 0.2  # seconds between two looks for news
_PASSED_ON = ("OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA")  # what torch reads when it is imported
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}


class Ray:
    """Runs cells on a Ray cluster: that of `address`, of RAY_ADDRESS, or a new one on this machine.

    A cell takes one core and, unless it is for the CPU, a share of a GPU: `gpus`, or as much as lets `jobs` cells
    share one. What a lost machine was doing is done by another one.
    """

    def __init__(self, address: str | None = None, *, jobs: int = 1, gpus: float | None = None) -> None:
        if jobs < 1:
            raise UserError(f"jobs must be at least 1; got {jobs}")
        if gpus is not None and (gpus < 0 or (gpus > 1 and gpus % 1)):
            raise UserError(f"--gpus-per-cell must be a share from 0 to 1, or a whole number; got {gpus:g}")
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self._ray = import_ray()
        self._ours = False
        self._connect()
        try:
            self.gpus = self._choose_gpus(jobs, gpus)
        except UserError:
            self.close()
            raise

    @property
    def jobs(self) -> int:
        """Cells that the machines of the cluster have room for at the same time."""
        room = (min(cpus, number / self.gpus if self.gpus else cpus) for cpus, number in self._nodes())
        return max(1, math.floor(sum(room)))

    def run(self, cells: Sequence[Cell], out: Out) -> Generator[News, None, None]:
        """Run all cells and tell what becomes of them; closing the generator cancels what runs."""
        self._connect()
        with self._tasks() as waiting:
            mailbox = self._mailbox()
            waiting.update(self._begin(cells, out, mailbox))
            while waiting:
                ended, _ = self._ray.wait(list(waiting), timeout=_TICK)
                for news in self._ray.get(mailbox.empty.remote()):
                    if news.number in waiting.values():
                        yield news
                for task in ended:
                    yield self._end(task, waiting.pop(task))

    def _begin(self, cells: Sequence[Cell], out: Out, mailbox: Any) -> dict[Any, int]:
        """Hand all cells to the cluster, which has them wait for a free place."""
        setups = dict.fromkeys(cell.setup for cell in cells)
        models = {one: self._ray.put(pack_model(one)) for one in setups}
        place = out.absolute() if isinstance(out, Path) else out
        work = self._ray.remote(_work)
        tasks = {}
        for number, cell in enumerate(cells):
            needs = {"num_cpus": 1, "num_gpus": 0 if cell.device == "cpu" else self.gpus, "max_retries": RETRIES}
            task = work.options(**needs, name=str(cell))
            tasks[task.remote(number, _absolute(cell), place, models[cell.setup], mailbox)] = number
        return tasks

    def _end(self, task: Any, number: int) -> Complete | Failed:
        """What became of a cell."""
        try:
            end: Complete | Failed = self._ray.get(task)
            return end
        except self._ray.exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            return Failed(number, f"it could not begin on its machine: {last}", f"{error}\n")
        except self._ray.exceptions.RayError as error:
            told = f"its machine or process was lost {RETRIES + 1} times ({type(error).__name__})"
            return Failed(number, f"{told}: look at the memory that is left, and start the command again")

    @contextmanager
    def _tasks(self) -> Iterator[dict[Any, int]]:
        """Keep tasks, and cancel those that are left; their runs go on from the last saved state another time."""
        waiting: dict[Any, int] = {}
        try:
            yield waiting
        finally:
            for task in waiting:
                self._ray.cancel(task, force=True)
            self.close()

    def close(self) -> None:
        """Leave the cluster, and end it if it was made for this."""
        if self._ours:
            self._ray.shutdown()
            self._ours = False

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        options: dict[str, Any] = dict(_QUIET)
        if self.address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options["include_dashboard"] = False
        else:
            knock(self.address)
        passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        self._ray.init(address=self.address, runtime_env={"env_vars": passed_on}, **options)
        self._ours = True

    def _mailbox(self) -> Any:
        """An actor for news, beside this process: other machines may get lost."""
        strategies = self._ray.util.scheduling_strategies
        here = strategies.NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        return self._ray.remote(_Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()

    def _nodes(self) -> list[tuple[float, float]]:
        """Cores and GPUs of every machine."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return [(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in alive]

    def _choose_gpus(self, jobs: int, wanted: float | None) -> float:
        most = max(gpus for _, gpus in self._nodes())
        if wanted is None:
            return math.floor(1e4 / jobs) / 1e4 if most else 0.0  # Ray counts in steps of 0.0001
        if wanted > most:
            told = f"no machine of the cluster has {wanted:g} GPUs, the most is {most:g}"
            raise UserError(f"{told}: use less --gpus-per-cell")
        return wanted


def import_ray() -> Any:
    """Ray, if it is installed."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'testdg[ray]'") from error
    return ray


def knock(address: str) -> None:
    """Refuse an address where no cluster answers; Ray itself would wait for minutes."""
    remedy = "start one there with `ray start --head`, or leave out --address"
    if address != "auto":
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
            raise UserError(f"a Ray address is HOST:PORT, ray://HOST:PORT or auto; got {address!r}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
        except OSError as error:
            raise UserError(f"no Ray cluster answers at {address} ({error.strerror or error}): {remedy}") from error
    script = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"
    try:
        subprocess.run([sys.executable, "-c", script, address], timeout=ANSWER, capture_output=True, check=True)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"no Ray cluster answers at {address} within {ANSWER:.0f} seconds: {remedy}") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"the Ray cluster at {address} cannot be used: {' '.join(reason)}; {remedy}") from error


def _absolute(cell: Cell) -> Cell:
    """The cell with paths that mean the same wherever a process is started."""
    options = {key: os.path.abspath(value) if _is_file(key, value) else value for key, value in cell.options}
    data, source = (None if path is None else os.path.abspath(path) for path in (cell.data, cell.source))
    return replace(cell, data=data, source=source, options=tuple(options.items()))


def _is_file(key: str, value: Any) -> bool:
    return key == "subset" and Path(value).is_file()


class _Mailbox:
    """Keeps news until they are fetched."""

    def __init__(self) -> None:
        self.news: list[Running] = []

    def put(self, news: Running) -> None:
        """Keep some news."""
        self.news.append(news)

    def empty(self) -> list[Running]:
        """Give all news since the last time."""
        news, self.news = self.news, []
        return news


def _work(number: int, cell: Cell, out: Out, model: SentModel | None, mailbox: Any) -> Complete | Failed:
    """Run one cell on a machine of the cluster."""
    import ray

    sent: list[Any] = []

    def tell(news: Running) -> None:  # without waiting: Ray gives the core of a task that waits to another one
        sent[:] = [mailbox.put.remote(news)]

    end = run_cell(number, unpacked(cell, model), out, tell, PATIENCE)
    ray.get(sent)  # all news are there before the end is
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # for the other processes on the same GPU
    return end
