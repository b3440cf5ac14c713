"""Places of runs: a folder, or a URL of fsspec (s3://bucket/runs), where complete runs are stored."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.files import cache_folder, checksum
from testdg.runs import Observer

_RESULT = "result.json"
_LIGHT = ("config.toml", "events.jsonl", _RESULT)  # the files that reading a run needs; the result comes last


@dataclass(frozen=True)
class Remote:
    """The place of a URL. A run is computed in a folder of this machine and uploaded when it is complete."""

    url: str

    @property
    def work(self) -> Path:
        """Parent of the runs that this machine computes."""
        return self._here("unfinished")

    def open(self) -> None:
        """Create the place; an error if it cannot be used."""
        with self._files() as (files, root):
            files.makedirs(root, exist_ok=True)

    def fetch(self, folder: Path) -> bool:
        """Download the numbers of a complete run into a folder of its name; False if there is no such run."""
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
        """Download the numbers of a complete run and return their folder."""
        folder = self._here("copies") / name
        if not self.fetch(folder):
            message = f"{self.url} has no run {name}: name a place that all machines share"
            raise UserError(message, code="no-such-run")
        return folder

    def upload(self, folder: Path) -> None:
        """Upload a complete run, its result last, and delete it here; a run that is stored already stays as it is."""
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
        """The file system and the path in it; all its errors become a `UserError`."""
        import fsspec  # a dependency of torch

        try:
            yield fsspec.core.url_to_fs(self.url)
        except UserError:
            raise
        except Exception as error:  # every kind of storage has its own errors
            reason = " ".join(str(error).split()) or type(error).__name__
            message = f"{self.url} cannot be used for runs: {reason}; choose another --out"
            raise UserError(message, code="cannot-write") from error

    def __str__(self) -> str:
        return self.url


Out = Path | Remote


def find_out(out: str | Path) -> Out:
    """The place of runs: a URL where there is a scheme, else a folder."""
    return Remote(out.rstrip("/")) if isinstance(out, str) and "://" in out else Path(out)


class Download(Observer):
    """Downloads a run that is complete already into the folder where it is expected."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    def opened(self, folder: Path) -> None:
        self.remote.fetch(folder)


def _send_file(files: Any, path: Path, target: str) -> None:
    files.makedirs(target.rpartition("/")[0], exist_ok=True)
    files.put_file(str(path), target)
