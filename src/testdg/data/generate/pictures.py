"""The layout of ImageNet-C and its like: `<corruption>/<severity>/<class>/<file>`, JPEG."""

import hashlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from testdg.data.corrupted import Corrupt
from testdg.data.corruptions import FrostTextures, corrupt_uint8
from testdg.data.decoder import Frame, decode
from testdg.data.generate.folder import CorruptOptions, Count, Tell, claimed
from testdg.data.generate.workers import workers
from testdg.data.image_files import list_images, spread
from testdg.data.picture_sets import Pictures, PictureSet
from testdg.errors import UserError
from testdg.files import replacing

QUALITY = 85  # of the published files
_CHUNK = 16  # pictures of one task


class _Source(NamedTuple):
    clean: Pictures
    names: list[str]
    positions: list[int]
    frame: Frame
    corrupt: Corrupt


class _Piece(NamedTuple):
    name: str
    severity: int
    start: int
    folder: Path


def write_pictures(
    folder: Path, data_set: PictureSet, data: Path, images: int | None, options: CorruptOptions, tell: Tell
) -> None:
    """Corrupt pictures `<class>/<file>`; every severity of a corruption appears when it is whole.

    The pictures are the set's test pictures, or those of `data` where it holds the classes itself; photographs of
    frost are taken from a folder `frost` in the data folder, or beside the classes.
    """
    inside = data_set.split_folder(data, data_set.test).is_dir()
    clean = data_set.list_test(data) if inside else Pictures(data, list_images(data))
    names = spread(list(clean.paths), images)
    _check_names(names)
    photographs = (data if inside else data.resolve().parent) / "frost"
    frost = FrostTextures.from_folder(photographs) if photographs.is_dir() else None
    about = options.describe(_fingerprint(clean, names), len(names), frost, data_set.parameters)
    corrupt = partial(corrupt_uint8, seed=options.seed, parameters=data_set.parameters, frost=frost)
    places_of = {name: place for place, name in enumerate(clean.paths)}  # noise does not depend on the choice
    source = _Source(clean, names, [places_of[name] for name in names], data_set.frame, corrupt)
    with claimed(folder, about) as manifest, workers(options.jobs, _make, source) as make:
        levels = {severity: data_set.severities[severity - 1] for severity in options.severities}
        places = {(name, s): folder / name / level for name in options.corruptions for s, level in levels.items()}
        todo = {key: place for key, place in places.items() if not place.exists()}
        count = Count(tell, len(names) * len(todo))
        for name, severity in places:
            if place := todo.get((name, severity)):
                part = place.with_name(f"{place.name}.part")
                pieces = (_Piece(name, severity, start, part) for start in range(0, len(names), _CHUNK))
                for made in make(pieces):
                    count.passed(name, made)
                part.rename(place)
            if severity == options.severities[-1]:
                manifest.add(name)


def _check_names(names: list[str]) -> None:
    """Refuse pictures whose names differ in their ending only: all are written as JPEG."""
    seen: dict[str, str] = {}
    for name in names:
        if (twin := seen.setdefault(_as_jpeg(name), name)) != name:
            raise UserError(f"{twin} and {name} would both become {_as_jpeg(name)}: rename one")


def _as_jpeg(name: str) -> str:
    return str(Path(name).with_suffix(".JPEG").as_posix())


def _fingerprint(clean: Pictures, names: list[str]) -> str:
    """Identify pictures by class, name and size; reading them all would take long."""
    digest = hashlib.blake2b(digest_size=6)
    for name in names:
        digest.update(f"{name} {(clean.folder / clean.paths[name]).stat().st_size}\n".encode())
    return digest.hexdigest()


def _make(source: _Source, piece: _Piece) -> list[str]:
    """Corrupt some pictures and write those that are not there."""
    part = slice(piece.start, piece.start + _CHUNK)
    names = source.names[part]
    for index, name in zip(source.positions[part], names, strict=True):
        target = piece.folder / _as_jpeg(name)
        if not target.exists():
            image = _read(source.clean.folder / source.clean.paths[name], source.frame)
            _write(target, source.corrupt(image[None], piece.name, piece.severity, indices=[index])[0])
    return names


def _write(target: Path, image: Tensor) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as fresh:
        Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(fresh, "JPEG", quality=QUALITY)


def _read(path: Path, frame: Frame) -> Tensor:
    """Read a picture at the size of the set: uint8, (3, side, side)."""
    pixels = decode(str(path), frame)
    if isinstance(pixels, str):
        raise UserError(f"{path} cannot be read as an image: {pixels}; replace it, or take it away")
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(3, frame.side, frame.side)
