"""The layout of ImageNet-C: `<corruption>/<severity>/<class>/<file>`, JPEG of 224 px."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from testdg.data.corruptions import FrostTextures, ParameterSet, corrupt_uint8
from testdg.data.decoder import SIDE, decode
from testdg.data.generate.plan import Count, Plan, Tell, claimed
from testdg.data.generate.workers import workers
from testdg.data.image_files import list_images
from testdg.errors import UserError
from testdg.files import replacing

PARAMETERS: ParameterSet = "imagenet"
QUALITY = 85  # of the published files
_CHUNK = 16  # pictures of one task


class _Source(NamedTuple):
    root: Path
    names: list[str]
    seed: int
    frost: FrostTextures | None


class _Piece(NamedTuple):
    name: str
    severity: int
    start: int
    folder: Path


def write_pictures(folder: Path, data: Path, images: int | None, plan: Plan, tell: Tell) -> None:
    """Corrupt pictures `<class>/<file>`; every severity of a corruption appears when it is whole.

    The pictures are those of `data/val`, or of `data` where it holds the classes itself; photographs of frost are
    taken from a folder `frost` beside the classes' folder.
    """
    root = data / "val" if (data / "val").is_dir() else data
    names = list_images(root)[:images]
    _check_names(names)
    photographs = root.resolve().parent / "frost"
    frost = FrostTextures.from_folder(photographs) if photographs.is_dir() else None
    about = plan.describe(_fingerprint(root, names), len(names), frost, PARAMETERS)
    source = _Source(root, names, plan.seed, frost)
    with claimed(folder, about) as manifest, workers(plan.jobs, _make, source) as make:
        places = {(name, s): folder / name / str(s) for name in plan.corruptions for s in plan.severities}
        todo = {key: place for key, place in places.items() if not place.exists()}
        count = Count(tell, len(names) * len(todo))
        for name, severity in places:
            if place := todo.get((name, severity)):
                part = place.with_name(f"{place.name}.part")
                pieces = (_Piece(name, severity, start, part) for start in range(0, len(names), _CHUNK))
                for made in make(pieces):
                    count.passed(name, made)
                part.rename(place)
            if severity == plan.severities[-1]:
                manifest.add(name)


def _check_names(names: list[str]) -> None:
    """Refuse pictures whose names differ in their ending only: all are written as JPEG."""
    seen: dict[str, str] = {}
    for name in names:
        if (twin := seen.setdefault(_as_jpeg(name), name)) != name:
            raise UserError(f"{twin} and {name} would both become {_as_jpeg(name)}: rename one")


def _as_jpeg(name: str) -> str:
    return str(Path(name).with_suffix(".JPEG").as_posix())


def _fingerprint(root: Path, names: list[str]) -> str:
    """Identify pictures by class, name and size; reading them all would take long."""
    digest = hashlib.blake2b(digest_size=6)
    for name in names:
        digest.update(f"{name} {(root / name).stat().st_size}\n".encode())
    return digest.hexdigest()


def _make(source: _Source, piece: _Piece) -> list[str]:
    """Corrupt some pictures and write those that are not there."""
    names = source.names[piece.start : piece.start + _CHUNK]
    for index, name in enumerate(names, piece.start):
        target = piece.folder / _as_jpeg(name)
        if not target.exists():
            _write(target, _corrupt(_read(source.root / name), source, piece, index))
    return names


def _corrupt(image: Tensor, source: _Source, piece: _Piece, index: int) -> Tensor:
    corrupted = corrupt_uint8(
        image[None],
        piece.name,
        piece.severity,
        indices=[index],
        seed=source.seed,
        parameters=PARAMETERS,
        frost=source.frost,
    )
    return corrupted[0]


def _write(target: Path, image: Tensor) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as fresh:
        Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(fresh, "JPEG", quality=QUALITY)


def _read(path: Path) -> Tensor:
    """Read a picture at 224 px: uint8, (3, 224, 224)."""
    pixels = decode(str(path))
    if isinstance(pixels, str):
        raise UserError(f"{path} cannot be read as an image: {pixels}; replace it, or take it away")
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(3, SIDE, SIDE)
