"""What is in a data folder: every known data set that is there, what it lacks and what is wrong with it.

Of pictures, headers and counts are looked at, not all pixels; label maps are read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from testdg.data.arrays import SEVERITIES, CorruptedArray, read_archive, read_labels
from testdg.data.cifar import CIFAR10, CIFAR100, Cifar, find_arrays, find_clean, read_batch
from testdg.data.corruptions import EXTRA, STANDARD_ORDER
from testdg.data.corruptions import SEVERITIES as LEVELS
from testdg.data.findings import Check
from testdg.data.image_files import list_classes, list_images
from testdg.data.imagenet import STORED_FOLDER, corruption_folder, find_class_list, find_stored
from testdg.data.manifest import read_manifest
from testdg.data.pictures import open_picture
from testdg.data.segmentation.check import LAYOUTS, check_maps
from testdg.errors import UserError

KNOWN = (
    "CIFAR-10-C, CIFAR-100-C, cifar-10-batches-py, cifar-100-python, cifar10.npz, cifar100.npz, ImageNet-C, val, "
    + LAYOUTS
)
_CIFAR_TEST, _CIFAR_TRAIN = 10_000, 50_000
_MADE = ", made by testdg corrupt"


def check_folder(data: Path) -> list[Check]:
    """Check every known data set in a folder."""
    if not data.is_dir():
        raise UserError(f"data folder {data} does not exist")
    checks = [look(data, kind) for kind in (CIFAR10, CIFAR100) for look in (_check_batches, _check_archive, _check_c)]
    checks += [_check_stored(data), *(_check_images(data, part) for part in ("val", "train"))]
    return [check for check in checks if check is not None] + check_maps(data)


def _check_batches(data: Path, kind: Cifar) -> Check | None:
    """Look at the pickled batches of a clean CIFAR set."""
    check = Check(kind.title, find_clean(data, kind))
    there = [name for name in (*kind.train, kind.test) if (check.folder / name).is_file()]
    if not there:
        return None
    counts = {}
    for name in there:
        samples = check.attempt(read_batch, check.folder / name, kind)
        if samples is not None:
            counts[name] = len(samples)
            expected = _CIFAR_TEST if name == kind.test else _CIFAR_TRAIN // len(kind.train)
            check.compare(check.folder / name, len(samples), expected)
    if kind.test not in there:
        check.problems.append(f"{check.folder / kind.test} is missing")
    missing = [name for name in kind.train if name not in there]
    if missing:
        check.notes.append(f"missing: {', '.join(missing)}; a source model is trained without them")
    test = counts.pop(kind.test, 0)
    check.found = f"{test} test images, {sum(counts.values())} training images"
    return check


def _check_archive(data: Path, kind: Cifar) -> Check | None:
    """Look at a clean CIFAR set in one .npz file."""
    check = Check(kind.title, data / kind.archive)
    if not check.folder.is_file():
        return None
    test = check.attempt(read_archive, check.folder, "test", len(kind.classes))
    try:
        train = len(read_archive(check.folder, "train", len(kind.classes)))
    except UserError as error:
        train = 0
        check.notes.append(f"no training images: {error}")
    if test is not None:
        check.compare(check.folder, len(test), _CIFAR_TEST, "test images")
    check.found = f"{len(test) if test else 0} test images, {train} training images"
    return check


def _check_c(data: Path, kind: Cifar) -> Check | None:
    """Look at the arrays of a CIFAR-C set."""
    folder = find_arrays(data, kind)
    if folder is None or folder.resolve().name != kind.arrays:
        return None
    check = Check(kind.arrays, folder)
    about = check.attempt(read_manifest, folder) or {}
    expected = int(about.get("images", _CIFAR_TEST))
    there = _corruptions(check, lambda name: (folder / f"{name}.npy").is_file())
    for name in there:
        path = folder / f"{name}.npy"
        array = check.attempt(CorruptedArray, path, 1)
        if array is not None:
            check.compare(path, len(array) * SEVERITIES, expected * SEVERITIES)
    if there:
        check.attempt(read_labels, folder / f"{there[0]}.npy", expected, len(kind.classes))
    check.found = f"{len(there)} corruptions, {SEVERITIES} severities, {expected} images{_MADE if about else ''}"
    return check


def _corruptions(check: Check, exists: Callable[[str], bool]) -> list[str]:
    """Those corruptions that are there; say which are not."""
    there = [name for name in (*STANDARD_ORDER, *EXTRA) if exists(name)]
    if missing := [name for name in STANDARD_ORDER if name not in there]:
        check.problems.append(f"{check.folder}: missing {', '.join(missing)}")
    if missing := [name for name in EXTRA if name not in there]:
        check.notes.append(f"missing: {', '.join(missing)}; only tuning needs them")
    return there


def _check_stored(data: Path) -> Check | None:
    """Look at the files of ImageNet-C."""
    stored = find_stored(data)
    if stored is None:
        return None
    check = Check(STORED_FOLDER, stored)
    there = _corruptions(check, lambda name: corruption_folder(stored, name) is not None)
    about = check.attempt(read_manifest, stored) or {}
    levels = about.get("severities", LEVELS)
    counts: dict[Path, int] = {}
    for folder in filter(None, (corruption_folder(stored, name) for name in there)):
        lacks = [str(level) for level in levels if not (folder / str(level)).is_dir()]
        if lacks:
            check.problems.append(f"{folder} has no severity {', '.join(lacks)}")
        counts |= {f: _count(check, f) for level in LEVELS if (f := folder / str(level)).is_dir()}
    usual = Counter(counts.values()).most_common(1)[0][0]
    for folder, count in counts.items():
        check.compare(folder, count, usual)
    check.found = f"{len(there)} corruptions, {len(counts)} severities in all, {usual} images{_MADE if about else ''}"
    return check


def _check_images(data: Path, part: str) -> Check | None:
    """Look at clean images in folders of classes."""
    folder = data / part
    if not folder.is_dir() or (data / f"{part}annot").is_dir():  # with label maps beside it, they are no classes
        return None
    check = Check(f"ImageNet {part}", folder)
    count, classes = _count(check, folder), len(list_classes(folder))
    check.found = f"{count} images, {classes} classes"
    if classes < 1000 and find_class_list(data, find_stored(data)) is None:
        told = f"{classes} class folders and no classes.txt"
        check.notes.append(f"{told}: labels count these folders, which fits a model of {classes} classes")
    return check


def _count(check: Check, folder: Path) -> int:
    """Count the images of a folder; look for empty files, empty classes, and at the first header of each class."""
    names = check.attempt(list_images, folder) or []
    firsts: dict[str, str] = {}
    for name in names:
        firsts.setdefault(name.split("/")[0], name)
    empty_classes = [name for name in list_classes(folder) if name not in firsts]
    empty_files = [name for name in names if os.path.getsize(folder / name) == 0]
    unreadable = [name for name in firsts.values() if name not in empty_files and not _has_header(folder / name)]
    check.report(folder, "class folders without images", empty_classes)
    check.report(folder, "empty files", empty_files)
    check.report(folder, "files without a readable header", unreadable)
    return len(names)


def _has_header(path: Path) -> bool:
    try:
        with open_picture(path):
            return True
    except Exception:  # a damaged picture raises nearly anything
        return False
