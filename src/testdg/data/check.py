"""What is in a data folder: every known data set that is there, what it lacks and what is wrong with it.

Of pictures, headers and counts are looked at, not all pixels; label maps are read.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testdg.data.arrays import SEVERITIES, CorruptedArray, read_archive, read_labels
from testdg.data.benchmarks.corruption import CorruptedSet, corrupted_sets
from testdg.data.cifar import Cifar, find_arrays, find_clean, read_batch
from testdg.data.corruptions import EXTRA, STANDARD_ORDER
from testdg.data.corruptions import SEVERITIES as LEVELS
from testdg.data.decoder import open_image_file
from testdg.data.findings import Check
from testdg.data.image_files import list_classes, list_images
from testdg.data.manifest import read_manifest
from testdg.data.picture_sets import PictureSet
from testdg.data.segmentation.check import LAYOUTS, check_maps
from testdg.errors import UserError

_MADE = ", made by testdg corrupt"


def check_folder(data: Path) -> list[Check]:
    """Check every known data set in a folder."""
    if not data.is_dir():
        raise UserError(f"data folder {data} does not exist")
    sets = _published()
    checkers = (_check_batches, _check_archive, _check_arrays)
    checks = [check(data, cifar) for cifar in sets if isinstance(cifar, Cifar) for check in checkers]
    picture_sets = [data_set for data_set in sets if isinstance(data_set, PictureSet)]
    own = [pictures for pictures in picture_sets if pictures.is_own(data)]  # it holds no other set then
    for pictures in own or picture_sets:
        splits = (pictures.test, pictures.train)
        checks += [_check_stored(data, pictures), *(_check_split(data, pictures, split) for split in splits)]
    return [check for check in checks if check is not None] + check_maps(data)


def looked_for() -> str:
    """What a data folder is looked through for, in words."""
    return ", ".join([*(data_set.needs for data_set in _published()), LAYOUTS])


def _published() -> list[CorruptedSet]:
    """The sets that a folder can be told to hold: not those of any pictures."""
    return [data_set for _, data_set in corrupted_sets().values() if getattr(data_set, "class_count", 1)]


def _check_batches(data: Path, cifar: Cifar) -> Check | None:
    """Look at the pickled batches of a clean CIFAR set."""
    check = Check(cifar.title, find_clean(data, cifar))
    there = [name for name in (*cifar.train, cifar.test) if (check.folder / name).is_file()]
    if not there:
        return None
    counts = {}
    for name in there:
        samples = check.attempt(read_batch, check.folder / name, cifar)
        if samples is not None:
            counts[name] = len(samples)
            expected = cifar.test_images if name == cifar.test else cifar.train_images // len(cifar.train)
            check.compare(check.folder / name, len(samples), expected)
    if cifar.test not in there:
        check.problems.append(f"{check.folder / cifar.test} is missing")
    missing = [name for name in cifar.train if name not in there]
    if missing:
        check.notes.append(f"missing: {', '.join(missing)}; a source model is trained without them")
    test = counts.pop(cifar.test, 0)
    check.found = f"{test} test images, {sum(counts.values())} training images"
    return check


def _check_archive(data: Path, cifar: Cifar) -> Check | None:
    """Look at a clean CIFAR set in one .npz file."""
    check = Check(cifar.title, data / cifar.archive)
    if not check.folder.is_file():
        return None
    test = check.attempt(read_archive, check.folder, "test", len(cifar.classes))
    try:
        train = len(read_archive(check.folder, "train", len(cifar.classes)))
    except UserError as error:
        train = 0
        check.notes.append(f"no training images: {error}")
    if test is not None:
        check.compare(check.folder, len(test), cifar.test_images, "test images")
    check.found = f"{len(test) if test else 0} test images, {train} training images"
    return check


def _check_arrays(data: Path, cifar: Cifar) -> Check | None:
    """Look at the arrays of a CIFAR-C set."""
    folder = find_arrays(data, cifar)
    if folder is None or folder.resolve().name != cifar.stored:
        return None
    check = Check(cifar.stored, folder)
    about = check.attempt(read_manifest, folder) or {}
    expected = int(about.get("images", cifar.test_images))
    there = _corruptions(check, lambda name: (folder / f"{name}.npy").is_file())
    for name in there:
        path = folder / f"{name}.npy"
        array = check.attempt(CorruptedArray, path, 1)
        if array is not None:
            check.compare(path, len(array) * SEVERITIES, expected * SEVERITIES)
    if there:
        check.attempt(read_labels, folder / f"{there[0]}.npy", expected, len(cifar.classes))
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


def _check_stored(data: Path, pictures: PictureSet) -> Check | None:
    """Look at the files of the corruptions."""
    stored = pictures.find_stored(data)
    if stored is None:
        return None
    check = Check(pictures.stored, stored)
    there = _corruptions(check, lambda name: pictures.corruption_folder(stored, name) is not None)
    about = check.attempt(read_manifest, stored) or {}
    levels = [pictures.severities[severity - 1] for severity in about.get("severities", LEVELS)]
    counts: dict[Path, int] = {}
    for folder in filter(None, (pictures.corruption_folder(stored, name) for name in there)):
        lacks = [level for level in levels if not (folder / level).is_dir()]
        if lacks:
            check.problems.append(f"{folder} has no severity {', '.join(lacks)}")
        for place in (folder / level for level in pictures.severities if (folder / level).is_dir()):
            counts[place] = _count(check, place, check.attempt(list_images, place) or {}, list_classes(place))
    usual = Counter(counts.values()).most_common(1)[0][0]
    for folder, count in counts.items():
        check.compare(folder, count, usual)
    check.found = f"{len(there)} corruptions, {len(counts)} severities in all, {usual} images{_MADE if about else ''}"
    return check


def _check_split(data: Path, pictures: PictureSet, split: str) -> Check | None:
    """Look at clean pictures."""
    part, folder = split.partition("/")[0], pictures.split_folder(data, split)
    if not folder.is_dir() or (data / f"{part}annot").is_dir():  # with label maps beside it, they are no classes
        return None
    check = Check(f"{pictures.title} {part}", folder)
    listed = check.attempt(pictures.list_split, data, split)
    paths = {} if listed is None else listed.paths
    classes = list_classes(folder) if "<class>" in split else sorted({name.split("/")[0] for name in paths})
    check.found = f"{_count(check, folder, paths, classes)} images, {len(classes)} classes"
    if len(classes) < pictures.class_count and pictures.find_class_list(data) is None:
        few = f"{len(classes)} class folders and no {pictures.class_lists[0]}"
        check.notes.append(f"{few}: labels count these folders, which fits a model of {len(classes)} classes")
    return check


def _count(check: Check, folder: Path, paths: Mapping[str, str], classes: Sequence[str]) -> int:
    """Count the images of a folder; look for empty files, empty classes, and at the first header of each class."""
    firsts: dict[str, str] = {}
    for name in paths:
        firsts.setdefault(name.split("/")[0], name)
    empty_files = [name for name, path in paths.items() if os.path.getsize(folder / path) == 0]
    filled = [name for name in firsts.values() if name not in empty_files]
    check.report(folder, "class folders without images", [name for name in classes if name not in firsts])
    check.report(folder, "empty files", empty_files)
    unreadable = [name for name in filled if not _has_header(folder / paths[name])]
    check.report(folder, "files without a readable header", unreadable)
    return len(paths)


def _has_header(path: Path) -> bool:
    try:
        with open_image_file(path):
            return True
    except UserError:
        return False
