"""Where runs are kept: a folder, or a URL of fsspec (s3://bucket/runs), which gets complete runs only."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.files import checksum
from testdg.runs import Observer
from testdg.runs.training.cache import cache_folder

_RESULT = "result.json"
_LIGHT = ("config.toml", "events.jsonl", _RESULT)  # what reading a run back needs; the result comes last


@dataclass(frozen=True)
class Remote:
    """A place behind a URL. A run is made in a folder of this machine and sent when it is complete."""

    url: str

    @property
    def work(self) -> Path:
        """Parent of the runs that this machine is at."""
        return self._here("unfinished")

    def open(self) -> None:
        """Make sure that the place is there and can be used."""
        with self._files() as (files, root):
            files.makedirs(root, exist_ok=True)

    def fetch(self, folder: Path) -> bool:
        """Bring what tells of a complete run into a folder of its name; False where the place has none."""
        with self._files() as (files, root):
            place = f"{root}/{folder.name}"
            files.invalidate_cache()
            if not files.exists(f"{place}/{_RESULT}"):
                return False
            folder.mkdir(parents=True, exist_ok=True)
            for name in _LIGHT:
                files.get_file(f"{place}/{name}", str(folder / name))
            return True

    def copy(self, name: str) -> Path:
        """Bring a complete run here, so that its numbers can be looked at."""
        folder = self._here("copies") / name
        if not self.fetch(folder):
            message = f"{self.url} does not hold the run {name}: name a place that all machines share"
            raise UserError(message, code="no-such-run")
        return folder

    def send(self, folder: Path) -> None:
        """Send a complete run, its result last, and forget it here; what the place has already stays as it is."""
        with self._files() as (files, root):
            place = f"{root}/{folder.name}"
            files.invalidate_cache()
            if not files.exists(f"{place}/{_RESULT}"):
                for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                    if path.name not in (".lock", _RESULT):
                        _send_file(files, path, f"{place}/{path.relative_to(folder).as_posix()}")
                _send_file(files, folder / _RESULT, f"{place}/{_RESULT}.new")
                files.mv(f"{place}/{_RESULT}.new", f"{place}/{_RESULT}")
        shutil.rmtree(folder, ignore_errors=True)

    def _here(self, kind: str) -> Path:
        return cache_folder() / kind / checksum(self.url.encode(), 5)

    @contextmanager
    def _files(self) -> Iterator[tuple[Any, str]]:
        """The file system and the path of the place in it; whatever goes wrong there becomes a sentence."""
        import fsspec  # torch brings it

        try:
            yield fsspec.core.url_to_fs(self.url)
        except UserError:
            raise
        except Exception as error:  # every kind of storage has errors of its own
            reason = " ".join(str(error).split()) or type(error).__name__
            message = f"{self.url} cannot be used for runs: {reason}; choose another --out"
            raise UserError(message, code="cannot-write") from error

    def __str__(self) -> str:
        return self.url


Out = Path | Remote


def find_out(out: str | Path) -> Out:
    """The place of runs: a URL where there is a scheme, else a folder."""
    return Remote(out.rstrip("/")) if isinstance(out, str) and "://" in out else Path(out)


class Fetching(Observer):
    """Brings a run that is complete already to the folder where it is looked for."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    def opened(self, folder: Path) -> None:
        """Look whether the run is there."""
        self.remote.fetch(folder)


def _send_file(files: Any, path: Path, target: str) -> None:
    files.makedirs(target.rpartition("/")[0], exist_ok=True)
    files.put_file(str(path), target)
