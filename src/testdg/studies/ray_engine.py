"""Ray: specs on the machines of a cluster, which may come and go."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from testdg.errors import UserError
from testdg.files import write_files
from testdg.runs.session import open_model
from testdg.runs.training.cache import cache_folder
from testdg.spec import RunSpec
from testdg.studies.engine import Complete, Failed, News, Running, run_one
from testdg.studies.ray_cluster import PATIENCE, RETRIES, TICK, Cluster
from testdg.studies.storage import Out


class Ray:
    """Runs specs on a Ray cluster: that of `address`, of RAY_ADDRESS, or a new one on this machine.

    A spec takes one core and, unless it is for the CPU, a share of a GPU: `gpus`, or as much as lets `jobs` specs
    share one. What a lost machine was doing is done by another one.
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
        """Cells that the machines of the cluster have room for at the same time."""
        return max(1, self.cluster.room(1, self.gpus))

    def run(self, specs: Sequence[RunSpec], out: Out) -> Generator[News, None, None]:
        """Run all specs and tell what becomes of them; closing the generator cancels what runs.

        What is cancelled goes on from its last saved state another time.
        """
        self.cluster.connect()
        waiting: dict[Any, int] = {}
        try:
            mailbox = self.cluster.mailbox()
            waiting.update(self._begin(specs, out, mailbox))
            while waiting:
                ended, _ = self._ray.wait(list(waiting), timeout=TICK)
                for news in self._ray.get(mailbox.empty.remote()):
                    if news.number in waiting.values():
                        yield news
                for task in ended:
                    yield self._end(task, waiting.pop(task))
        finally:
            for task in waiting:
                self._ray.cancel(task, force=True)
            self.close()

    def _begin(self, specs: Sequence[RunSpec], out: Out, mailbox: Any) -> dict[Any, int]:
        """Hand all specs to the cluster, which has them wait for a free place."""
        models = {setup: self._ray.put(pack_model(setup)) for setup in dict.fromkeys(spec.setup for spec in specs)}
        place = out.absolute() if isinstance(out, Path) else out
        work = self._ray.remote(_work)
        tasks = {}
        for number, spec in enumerate(specs):
            needs = {"num_cpus": 1, "num_gpus": 0 if spec.device == "cpu" else self.gpus, "max_retries": RETRIES}
            task = work.options(**needs, name=str(spec))
            tasks[task.remote(number, _absolute(spec), place, models[spec.setup], mailbox)] = number
        return tasks

    def _end(self, task: Any, number: int) -> Complete | Failed:
        """What became of a spec."""
        try:
            end: Complete | Failed = self._ray.get(task)
            return end
        except self._ray.exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            return Failed(number, f"it could not begin on its machine: {last}", f"{error}\n")
        except self._ray.exceptions.RayError as error:
            told = f"its machine or process was lost {RETRIES + 1} times ({type(error).__name__})"
            return Failed(number, f"{told}: look at the memory that is left, and start the command again")

    def close(self) -> None:
        """Leave the cluster, and end it if it was made for this."""
        self.cluster.close()


def _absolute(spec: RunSpec) -> RunSpec:
    """The run with paths that mean the same wherever a process is started."""
    paths = {key: getattr(spec, key) for key in ("data", "source", "subset")}
    given = {key: path for key, path in paths.items() if path and (key != "subset" or Path(path).is_file())}
    return msgspec.structs.replace(spec, **{key: os.path.abspath(path) for key, path in given.items()})


def _work(number: int, spec: RunSpec, out: Out, model: SentModel | None, mailbox: Any) -> Complete | Failed:
    """Run one spec on a machine of the cluster."""
    import ray

    sent: list[Any] = []

    def tell(news: Running) -> None:  # without waiting: Ray gives the core of a task that waits to another one
        sent[:] = [mailbox.put.remote(news)]

    end = run_one(number, unpacked(spec, model), out, tell, PATIENCE)
    ray.get(sent)  # all news are there before the end is
    return end


@dataclass(frozen=True)
class SentModel:
    """A model as bytes, so that every machine adapts exactly the same one: a file, or a folder, by its name."""

    name: str
    files: dict[str, bytes]
    """Contents by their path in the folder; the path is `.` for a single file."""

    def unpack(self) -> Path:
        """Write the files on this machine, once, and tell where."""
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
    """Pack the model of a spec; None where every machine fetches it by itself, from the hub or from timm.

    That of an embedded benchmark was trained by `prepare`, or is now.
    """
    source = cache_folder() / open_model(setup, "cpu").name if setup.model is None else Path(setup.model).absolute()
    if not source.exists():
        return None
    files = (path for path in (source, *source.rglob("*")) if path.is_file())
    return SentModel(source.name, {path.relative_to(source).as_posix(): path.read_bytes() for path in files})


def unpacked(spec: RunSpec, model: SentModel | None) -> RunSpec:
    """The spec with the model that came along."""
    return spec if model is None else msgspec.structs.replace(spec, model=str(model.unpack()))
