"""Ray: cells on the machines of a cluster, which may come and go."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from testdg.errors import UserError
from testdg.experiments.engine import Complete, Failed, News, Running, run_cell
from testdg.experiments.grid import Cell
from testdg.experiments.ray_cluster import PATIENCE, RETRIES, TICK, Cluster
from testdg.experiments.sent_model import SentModel, pack_model, unpacked
from testdg.experiments.storage import Out


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
        self.cluster = Cluster(address)
        self._ray = self.cluster.ray
        try:
            self.gpus = self.cluster.choose_gpus(gpus, "--gpus-per-cell", jobs)
        except UserError:
            self.close()
            raise

    @property
    def jobs(self) -> int:
        """Cells that the machines of the cluster have room for at the same time."""
        return max(1, self.cluster.room(1, self.gpus))

    def run(self, cells: Sequence[Cell], out: Out) -> Generator[News, None, None]:
        """Run all cells and tell what becomes of them; closing the generator cancels what runs."""
        self.cluster.connect()
        with self._tasks() as waiting:
            mailbox = self.cluster.mailbox()
            waiting.update(self._begin(cells, out, mailbox))
            while waiting:
                ended, _ = self._ray.wait(list(waiting), timeout=TICK)
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
        self.cluster.close()


def _absolute(cell: Cell) -> Cell:
    """The cell with paths that mean the same wherever a process is started."""
    options = {key: os.path.abspath(value) if _is_file(key, value) else value for key, value in cell.options}
    data, source = (None if path is None else os.path.abspath(path) for path in (cell.data, cell.source))
    return replace(cell, data=data, source=source, options=tuple(options.items()))


def _is_file(key: str, value: Any) -> bool:
    return key == "subset" and Path(value).is_file()


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
