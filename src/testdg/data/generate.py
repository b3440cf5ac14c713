"""Writers of corrupted sets in the published layouts, arrays or pictures, by several processes."""

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.lib import format as npy
from PIL import Image
from torch import Tensor

from testdg.data.benchmarks.base import Corrupt, Options, check_once, fingerprint
from testdg.data.benchmarks.corruption import corrupted_sets
from testdg.data.corruptions import CIFAR, EXTRA, SEVERITIES, STANDARD_ORDER, FrostTextures, ParameterSet, corrupt_uint8
from testdg.data.corruptions.parameters import check_severity
from testdg.data.image_files import list_images, spread
from testdg.data.picture_sets import MANIFEST as MANIFEST
from testdg.data.picture_sets import Pictures, PictureSet, read_manifest
from testdg.data.pictures import Crop, read_image
from testdg.data.stream import LabelledImages
from testdg.errors import UserError, look_up, unknown
from testdg.files import locked, replace_text, replacing, writing
from testdg.version import __version__

Images = TypeVar("Images", bound=Sized)
ALL = (*STANDARD_ORDER, *EXTRA)
OnProgress = Callable[[str, int, int], None]
"""Progress: the current corruption, the number of images that this command has made so far, and their total."""


@dataclass(frozen=True)
class CorruptOptions:
    """The corruptions to make, at which severities, from which seed, by how many processes."""

    corruptions: Sequence[str] = ALL
    severities: Sequence[int] = SEVERITIES
    seed: int = 0
    jobs: int = 1

    def __post_init__(self) -> None:
        for name in self.corruptions:
            if name not in ALL:
                raise unknown("corruption", name, ALL)
        for severity in self.severities:
            check_severity(severity)
        check_once("corruptions", self.corruptions)
        check_once("severities", self.severities)
        if self.jobs < 1:
            raise UserError(f"jobs must be at least 1; got {self.jobs}", code="wrong-jobs")

    def describe(
        self, source: str, images: int, frost: FrostTextures | None, parameters: ParameterSet
    ) -> dict[str, Any]:
        """Everything that the images depend on, for the manifest; `source` is a fingerprint of the clean ones."""
        return {
            "seed": self.seed,
            "frost": "procedural" if frost is None else f"{frost.description} ({fingerprint(frost.textures)})",
            "source_fingerprint": source,
            "images": images,
            "severities": sorted(self.severities),
            "corruptions": [],
            "parameters": parameters.name,
        }


class Count:
    """Counts images while they are made, and reports the progress."""

    def __init__(self, on_progress: OnProgress, total: int) -> None:
        self.on_progress, self.done, self.total = on_progress, 0, total

    def passed(self, name: str, images: Images) -> Images:
        """Count images of a corruption and return them."""
        self.done += len(images)
        self.on_progress(name, self.done, self.total)
        return images


class Manifest:
    """The file that lists which corruptions of a folder are complete, and what they were made from.

    An existing manifest is continued if it has the same values; otherwise the folder is refused.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.path = folder / MANIFEST
        self.about: dict[str, Any] = {"generator": "testdg", "version": __version__, **about}
        begun = read_manifest(folder)
        for key, value in self.about.items():
            if key != "corruptions" and begun is not None and begun.get(key) != value:
                remedy = "choose another --out, or delete the folder"
                raise UserError(
                    f"{folder} was made with {key} {begun.get(key)}, not {value}: {remedy}", code="other-data"
                )
        self.about["corruptions"] = [] if begun is None else list(begun.get("corruptions", []))
        self._write()

    def add(self, name: str) -> None:
        """Mark a corruption as complete."""
        if name not in self.about["corruptions"]:
            self.about["corruptions"] = [known for known in ALL if known in (name, *self.about["corruptions"])]
            self._write()

    def _write(self) -> None:
        replace_text(self.path, json.dumps(self.about, indent=2) + "\n")


@contextmanager
def claimed(folder: Path, about: dict[str, Any]) -> Iterator[Manifest]:
    """Lock a folder that is new or was begun by the same command; failures to write become user errors."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()} - {".lock", MANIFEST + ".new"}
    if names and MANIFEST not in names:
        raise UserError(
            f"{folder} contains {min(names)} but no {MANIFEST}, so it was made by something else: choose another --out",
            code="folder-in-use",
        )
    busy = f"{folder} is being written by another command: wait for it, or choose another --out"
    with locked(folder / ".lock", busy), writing(folder):
        yield Manifest(folder, about)


Shared = TypeVar("Shared")
Task = TypeVar("Task")
Made = TypeVar("Made")

_work: list[Any] = []  # in a worker: the function and what all of its tasks share


@contextmanager
def workers(
    jobs: int, function: Callable[[Shared, Task], Made], shared: Shared
) -> Iterator[Callable[[Iterable[Task]], Iterator[Made]]]:
    """Yield a `map` of function(shared, task), in processes if `jobs` > 1; results keep the order of tasks."""
    if jobs == 1:
        yield lambda tasks: (function(shared, task) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
    executor = ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(function, shared))
    try:
        yield lambda tasks: executor.map(_call, tasks)
    except BrokenProcessPool as error:
        raise UserError(
            f"one of {jobs} worker processes ended: they may lack memory; try fewer --jobs",
            code="worker-died",
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _start(function: Callable[..., Any], shared: Any) -> None:
    """Initialise a worker: one thread, no reaction to Ctrl-C, and an end when its parent ends."""
    torch.set_num_threads(1)
    depend_on_parent()
    _work[:] = [function, shared]


def depend_on_parent() -> None:
    """Ignore Ctrl-C, which the parent handles, and end with the parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _call(task: Any) -> Any:
    function, shared = _work
    return function(shared, task)


QUALITY = 85  # of the published files
_ARRAY_CHUNK, _PICTURE_CHUNK = 500, 16  # images of one task

Array = np.ndarray[Any, np.dtype[np.uint8]]


class _Piece(NamedTuple):
    """Images of one task: under one corruption, from a start on; pictures are written to `folder`."""

    name: str
    severity: int
    start: int
    folder: Path


class _Arrays(NamedTuple):
    images: Tensor
    corrupt: Corrupt


class _Files(NamedTuple):
    clean: Pictures
    names: list[str]
    positions: list[int]
    crop: Crop
    corrupt: Corrupt


def write_set(
    benchmark: str, data: Path, out: Path, images: int | None, options: CorruptOptions, on_progress: OnProgress
) -> Path:
    """Make the set of a benchmark from its clean images in the folder `out`; return the folder of the set."""
    benchmark_class, data_set = look_up("corrupted data set", benchmark, corrupted_sets())
    if images is not None and images < 1:
        raise UserError(f"images must be at least 1; got {images}", code="wrong-images")
    if not data.is_dir():
        raise UserError(
            f"data folder {data} does not exist: expected a folder with clean images", code="no-such-folder"
        )
    folder = out / data_set.stored
    if isinstance(data_set, PictureSet):
        write_pictures(folder, data_set, data, images, options, on_progress)
    else:
        bench = benchmark_class(data, Options(images=images))
        write_arrays(folder, bench.clean, bench.frost, options, on_progress, data_set.parameters)
    return folder


def write_arrays(
    folder: Path,
    clean: LabelledImages,
    frost: FrostTextures | None,
    options: CorruptOptions,
    on_progress: OnProgress,
    parameters: ParameterSet = CIFAR,
) -> None:
    """Write `<corruption>.npy`, uint8 (5 N, H, W, 3), and `labels.npy`; existing corruptions are not made again."""
    if sorted(options.severities) != list(SEVERITIES):
        raise UserError(
            f"arrays hold all five severities, one after the other; got {', '.join(map(str, options.severities))}: "
            "leave --severities out",
            code="wrong-severities",
        )
    source = _Arrays(clean.images, partial(corrupt_uint8, seed=options.seed, parameters=parameters, frost=frost))
    about = options.describe(fingerprint([clean.images, clean.labels]), len(clean), frost, parameters)
    with claimed(folder, about) as manifest, workers(options.jobs, _make_rows, source) as make:
        _write_array(folder / "labels.npy", (5 * len(clean),), [np.tile(clean.labels.numpy().astype(np.uint8), 5)])
        todo = [name for name in options.corruptions if not (folder / f"{name}.npy").exists()]
        count = Count(on_progress, 5 * len(clean) * len(todo))
        starts = range(0, len(clean), _ARRAY_CHUNK)
        for name in options.corruptions:
            if name in todo:
                pieces = [_Piece(name, severity, start, folder) for severity in SEVERITIES for start in starts]
                rows = (count.passed(name, made) for made in make(pieces))
                _write_array(folder / f"{name}.npy", (5 * len(clean), *clean.images.shape[2:], 3), rows)
            manifest.add(name)


def _make_rows(source: _Arrays, piece: _Piece) -> Array:
    """Corrupt the images of one task, (N, H, W, 3)."""
    images = source.images[piece.start : piece.start + _ARRAY_CHUNK]
    indices = range(piece.start, piece.start + len(images))
    corrupted = source.corrupt(images, piece.name, piece.severity, indices=indices)
    return corrupted.permute(0, 2, 3, 1).contiguous().numpy()


def _write_array(path: Path, shape: tuple[int, ...], pieces: Iterable[Array]) -> None:
    """Write an .npy file piece by piece; it gets its name when it is complete."""
    with replacing(path) as fresh, fresh.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for piece in pieces:
            file.write(piece.tobytes())


def write_pictures(
    folder: Path, data_set: PictureSet, data: Path, images: int | None, options: CorruptOptions, on_progress: OnProgress
) -> None:
    """Write `<corruption>/<severity>/<class>/<file>`, JPEG; a severity gets its name when it is complete.

    The pictures are the test pictures of the set, or those of `data` if it contains class folders; photographs of frost
    are read from a folder `frost` in the data folder, or next to the classes.
    """
    inside = data_set.split_folder(data, data_set.test).is_dir()
    clean = data_set.list_test(data) if inside else Pictures(data, list_images(data))
    names = spread(list(clean.paths), images)
    seen: dict[str, str] = {}
    for name in names:  # all are written as JPEG
        if (twin := seen.setdefault(_as_jpeg(name), name)) != name:
            message = f"{twin} and {name} would both become {_as_jpeg(name)}: rename one"
            raise UserError(message, code="duplicate")
    photographs = (data if inside else data.resolve().parent) / "frost"
    frost = FrostTextures.from_folder(photographs) if photographs.is_dir() else None
    digest = hashlib.blake2b(digest_size=6)  # of class, name and size: reading all pictures would take too long
    for name in names:
        digest.update(f"{name} {(clean.folder / clean.paths[name]).stat().st_size}\n".encode())
    about = options.describe(digest.hexdigest(), len(names), frost, data_set.parameters)
    corrupt = partial(corrupt_uint8, seed=options.seed, parameters=data_set.parameters, frost=frost)
    places_of = {name: place for place, name in enumerate(clean.paths)}  # noise does not depend on the choice
    source = _Files(clean, names, [places_of[name] for name in names], data_set.crop, corrupt)
    with claimed(folder, about) as manifest, workers(options.jobs, _make_files, source) as make:
        levels = {severity: data_set.severities[severity - 1] for severity in options.severities}
        places = {(name, s): folder / name / level for name in options.corruptions for s, level in levels.items()}
        todo = {key: place for key, place in places.items() if not place.exists()}
        count = Count(on_progress, len(names) * len(todo))
        for name, severity in places:
            if place := todo.get((name, severity)):
                part = place.with_name(f"{place.name}.part")
                pieces = (_Piece(name, severity, start, part) for start in range(0, len(names), _PICTURE_CHUNK))
                for made in make(pieces):
                    count.passed(name, made)
                part.rename(place)
            if severity == options.severities[-1]:
                manifest.add(name)


def _as_jpeg(name: str) -> str:
    return str(Path(name).with_suffix(".JPEG").as_posix())


def _make_files(source: _Files, piece: _Piece) -> list[str]:
    """Corrupt the pictures of one task, and write those that do not exist."""
    part = slice(piece.start, piece.start + _PICTURE_CHUNK)
    names = source.names[part]
    for index, name in zip(source.positions[part], names, strict=True):
        target = piece.folder / _as_jpeg(name)
        if not target.exists():
            path = source.clean.folder / source.clean.paths[name]
            image = read_image(path, source.crop, "replace or delete it")
            made = source.corrupt(image[None], piece.name, piece.severity, indices=[index])[0]
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as fresh:
                Image.fromarray(made.permute(1, 2, 0).contiguous().numpy()).save(fresh, "JPEG", quality=QUALITY)
    return names
