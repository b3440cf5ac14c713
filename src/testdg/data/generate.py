"""Writers of corrupted sets in the published layouts, arrays or pictures, by several processes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from msgspec import structs
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from testdg.data.benchmarks.base import Corrupt, Options, check_once, fingerprint
from testdg.data.benchmarks.corruption import corrupted_sets
from testdg.data.corruptions import CIFAR, EXTRA, SEVERITIES, STANDARD_ORDER, FrostTextures, ParameterSet, corrupt_uint8
from testdg.data.corruptions.parameters import check_severity
from testdg.data.image_files import list_images, spread
from testdg.data.picture_sets import MANIFEST, Manifest, Pictures, PictureSet, read_manifest
from testdg.data.pictures import Crop, read_image
from testdg.data.stream import LabelledImages
from testdg.errors import UserError, look_up, unknown
from testdg.files import checksum, locked, replacing, writing
from testdg.version import __version__

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


class _Progress:
    """Counts images while they are made."""

    def __init__(self, on_progress: OnProgress, total: int) -> None:
        self.on_progress, self.done, self.total = on_progress, 0, total

    def add(self, name: str, images: int) -> None:
        self.done += images
        self.on_progress(name, self.done, self.total)


@contextmanager
def claimed(folder: Path, manifest: Manifest) -> Iterator[Callable[[str], None]]:
    """Lock a folder that is new or has a manifest with the same values; failures to write become user errors.

    The function that this yields adds a complete corruption to the manifest.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()} - {".lock", MANIFEST + ".new"}
    if names and MANIFEST not in names:
        raise UserError(
            f"{folder} contains {min(names)} but no {MANIFEST}, so testdg did not write it: choose another --out",
            code="folder-in-use",
        )

    def add(name: str) -> None:
        if name not in manifest.corruptions:
            manifest.corruptions = [known for known in ALL if known in (name, *manifest.corruptions)]
            manifest.write(folder)

    busy = f"{folder} is being written by another command: wait for it, or choose another --out"
    with locked(folder / ".lock", busy), writing(folder):
        begun = read_manifest(folder)
        if begun is not None:
            manifest.corruptions = begun.corruptions
            for key, value in structs.asdict(manifest).items():
                if (other := getattr(begun, key)) != value:
                    remedy = "choose another --out, or delete the folder"
                    raise UserError(f"{folder} was made with {key} {other}, not {value}: {remedy}", code="other-data")
        manifest.write(folder)
        yield add


class _Piece(NamedTuple):
    """Images of one task: under one corruption, from a start on; pictures are written to `folder`."""

    name: str
    severity: int
    start: int
    folder: Path


Made = TypeVar("Made")
_work: list[Callable[[_Piece], Any]] = []  # in a worker: the function of all tasks


@contextmanager
def workers(jobs: int, function: Callable[[_Piece], Made]) -> Iterator[Callable[[Iterable[_Piece]], Iterator[Made]]]:
    """Yield a `map` of the function, in processes if `jobs` > 1; results keep the order of tasks."""
    if jobs == 1:
        yield lambda tasks: map(function, tasks)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
    executor = ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(function,))
    try:
        yield lambda tasks: executor.map(_call, tasks)
    except BrokenProcessPool as error:
        raise UserError(
            f"one of {jobs} worker processes ended: they may lack memory; try fewer --jobs", code="worker-died"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _start(function: Callable[[_Piece], Any]) -> None:
    """Initialise a worker: one thread, no reaction to Ctrl-C, and an end when its parent ends."""
    torch.set_num_threads(1)
    depend_on_parent()
    _work[:] = [function]


def depend_on_parent() -> None:
    """Ignore Ctrl-C, which the parent handles, and end with the parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _call(task: _Piece) -> Any:
    return _work[0](task)


QUALITY = 85  # of the published files
_ARRAY_CHUNK, _PICTURE_CHUNK = 500, 16  # images of one task


@dataclass
class _RowMaker:
    """Makes the rows of one task, uint8 (N, H, W, 3)."""

    images: Tensor
    corrupt: Corrupt

    def __call__(self, piece: _Piece) -> NDArray[np.uint8]:
        images = self.images[piece.start : piece.start + _ARRAY_CHUNK]
        indices = range(piece.start, piece.start + len(images))
        corrupted = self.corrupt(images, piece.name, piece.severity, indices=indices)
        return corrupted.permute(0, 2, 3, 1).contiguous().numpy()


@dataclass
class _FileMaker:
    """Writes the pictures of one task that do not exist, and returns how many pictures the task has."""

    clean: Pictures
    names: list[str]
    positions: list[int]
    crop: Crop
    corrupt: Corrupt

    def __call__(self, piece: _Piece) -> int:
        part = slice(piece.start, piece.start + _PICTURE_CHUNK)
        names = self.names[part]
        for index, name in zip(self.positions[part], names, strict=True):
            target = piece.folder / _as_jpeg(name)
            if not target.exists():
                image = read_image(self.clean.folder / self.clean.paths[name], self.crop, "replace or delete it")
                made = self.corrupt(image[None], piece.name, piece.severity, indices=[index])[0]
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as fresh:
                    Image.fromarray(made.permute(1, 2, 0).contiguous().numpy()).save(fresh, "JPEG", quality=QUALITY)
        return len(names)


def _as_jpeg(name: str) -> str:
    return str(Path(name).with_suffix(".JPEG").as_posix())


def _describe(
    options: CorruptOptions, source: str, images: int, frost: FrostTextures | None, parameters: ParameterSet
) -> Manifest:
    """Everything that the images depend on; `source` is a fingerprint of the clean ones."""
    return Manifest(
        version=__version__,
        seed=options.seed,
        frost="procedural" if frost is None else f"{frost.description} ({fingerprint(frost.textures)})",
        source_fingerprint=source,
        images=images,
        severities=sorted(options.severities),
        parameters=parameters.name,
    )


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
            f"arrays always contain all five severities; got {', '.join(map(str, options.severities))}: "
            "leave out --severities",
            code="wrong-severities",
        )
    corrupt = partial(corrupt_uint8, seed=options.seed, parameters=parameters, frost=frost)
    maker = _RowMaker(clean.images, corrupt)
    source = fingerprint([clean.images, clean.labels])
    about = _describe(options, source, len(clean), frost, parameters)
    with claimed(folder, about) as mark_complete, workers(options.jobs, maker) as make:
        with _array_file(folder / "labels.npy", (5 * len(clean),)) as file:
            file.write(np.tile(clean.labels.numpy().astype(np.uint8), 5).tobytes())
        todo = [name for name in options.corruptions if not (folder / f"{name}.npy").exists()]
        progress = _Progress(on_progress, 5 * len(clean) * len(todo))
        starts = range(0, len(clean), _ARRAY_CHUNK)
        for name in options.corruptions:
            if name in todo:
                pieces = [_Piece(name, severity, start, folder) for severity in SEVERITIES for start in starts]
                shape = (5 * len(clean), *clean.images.shape[2:], 3)
                with _array_file(folder / f"{name}.npy", shape) as file:
                    for rows in make(pieces):
                        progress.add(name, len(rows))
                        file.write(rows.tobytes())
            mark_complete(name)


@contextmanager
def _array_file(path: Path, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """Open an .npy file for the bytes of an array of uint8; it gets its name when it is complete."""
    with replacing(path) as fresh, fresh.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        yield file


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
    # Class, name and size identify the pictures: reading all of them would take too long.
    listed = "".join(f"{name} {(clean.folder / clean.paths[name]).stat().st_size}\n" for name in names)
    about = _describe(options, checksum(listed.encode(), 6), len(names), frost, data_set.parameters)
    corrupt = partial(corrupt_uint8, seed=options.seed, parameters=data_set.parameters, frost=frost)
    # Noise does not depend on the choice.
    places_of = {name: place for place, name in enumerate(clean.paths)}
    maker = _FileMaker(clean, names, [places_of[name] for name in names], data_set.crop, corrupt)
    with claimed(folder, about) as mark_complete, workers(options.jobs, maker) as make:
        places = [
            (name, severity, folder / name / data_set.severities[severity - 1])
            for name in options.corruptions
            for severity in options.severities
        ]
        todo = [place for _, _, place in places if not place.exists()]
        progress = _Progress(on_progress, len(names) * len(todo))
        for name, severity, place in places:
            if place in todo:
                part = place.with_name(f"{place.name}.part")
                pieces = (_Piece(name, severity, start, part) for start in range(0, len(names), _PICTURE_CHUNK))
                for made in make(pieces):
                    progress.add(name, made)
                part.rename(place)
            if severity == options.severities[-1]:
                mark_complete(name)
