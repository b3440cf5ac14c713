"""Checks of a data folder: the known data sets that it contains, what is missing, and what is damaged.

Of pictures, headers and counts are checked, not all pixels; label maps are read.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from testdg.data.benchmarks.acdc import Acdc
from testdg.data.benchmarks.corruption import CorruptedSet, corrupted_sets
from testdg.data.cifar import Cifar, CorruptedArray, find_arrays, find_clean, read_archive, read_batch, read_labels
from testdg.data.corruptions import EXTRA, SEVERITIES, STANDARD_ORDER
from testdg.data.image_files import list_classes, list_images
from testdg.data.picture_sets import PictureSet, read_manifest
from testdg.data.segmentation import layouts
from testdg.data.segmentation.files import Pair, check_picture, read_mask, size_of
from testdg.data.weather import CONDITIONS
from testdg.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Check:
    """One data set: its contents, problems that prevent its use, and notes."""

    name: str
    folder: Path
    found: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def attempt(self, read: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """Call a reader; a user error becomes a problem."""
        try:
            return read(*arguments, **named)
        except UserError as error:
            self.problems.append(str(error))
            return None

    def compare(self, path: Path, count: int, expected: int, what: str = "images") -> None:
        """Add a problem if a count is unexpected."""
        if count != expected:
            self.problems.append(f"{path} has {count} {what}: expected {expected}")

    def report(self, folder: Path, what: str, names: Iterable[str]) -> None:
        """Add a problem that some files of a folder share."""
        affected = list(names)
        if affected:
            self.problems.append(f"{folder}: {len(affected)} {what}, first {affected[0]}")


_MADE = ", made by testdg corrupt"


def check_folder(data: Path) -> list[Check]:
    """Check every known data set in a folder."""
    if not data.is_dir():
        raise UserError(f"data folder {data} does not exist", code="no-such-folder")
    sets = _published()
    checks: list[Check | None] = []
    for cifar in sets:
        if isinstance(cifar, Cifar):
            checks += [_check_batches(data, cifar), _check_archive(data, cifar), _check_arrays(data, cifar)]
    picture_sets = [data_set for data_set in sets if isinstance(data_set, PictureSet)]
    # Then it contains no other set.
    own = [pictures for pictures in picture_sets if pictures.is_own(data)]
    for pictures in own or picture_sets:
        checks.append(_check_stored(data, pictures))
        checks += [_check_split(data, pictures, split) for split in (pictures.test, pictures.train)]
    return [check for check in checks if check is not None] + check_maps(data)


def looked_for() -> str:
    """The data sets that `check_folder` looks for, in words."""
    return ", ".join([*(data_set.needs for data_set in _published()), Acdc.needs, layouts.FOLDERS])


def _published() -> list[CorruptedSet]:
    """Published sets, without those of any pictures."""
    return [data_set for _, data_set in corrupted_sets().values() if getattr(data_set, "class_count", 1)]


def _check_batches(data: Path, cifar: Cifar) -> Check | None:
    check = Check(cifar.title, find_clean(data, cifar))
    there = [name for name in (*cifar.train, cifar.test) if (check.folder / name).is_file()]
    if not there:
        return None
    counts = {}
    for name in there:
        samples = check.attempt(read_batch, check.folder / name, cifar)
        if samples is not None:
            counts[name] = len(samples)
            is_test = name == cifar.test
            expected = cifar.test_images if is_test else cifar.train_images // len(cifar.train)
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
    folder = find_arrays(data, cifar)
    if folder is None or folder.resolve().name != cifar.stored:
        return None
    check = Check(cifar.stored, folder)
    made = check.attempt(read_manifest, folder)
    expected = (made.images if made else None) or cifar.test_images
    there = _corruptions(check, lambda name: (folder / f"{name}.npy").is_file())
    for name in there:
        path = folder / f"{name}.npy"
        array = check.attempt(CorruptedArray, path, 1)
        if array is not None:
            check.compare(path, 5 * len(array), 5 * expected)
    if there:
        check.attempt(read_labels, folder / f"{there[0]}.npy", expected, len(cifar.classes))
    check.found = f"{len(there)} corruptions, 5 severities, {expected} images{_MADE if made else ''}"
    return check


def _corruptions(check: Check, exists: Callable[[str], bool]) -> list[str]:
    """The existing corruptions; missing ones are added to problems or notes."""
    there = [name for name in (*STANDARD_ORDER, *EXTRA) if exists(name)]
    if missing := [name for name in STANDARD_ORDER if name not in there]:
        check.problems.append(f"{check.folder}: missing {', '.join(missing)}")
    if missing := [name for name in EXTRA if name not in there]:
        check.notes.append(f"missing: {', '.join(missing)}; only tuning needs them")
    return there


def _check_stored(data: Path, pictures: PictureSet) -> Check | None:
    stored = pictures.find_stored(data)
    if stored is None:
        return None
    check = Check(pictures.stored, stored)
    there = _corruptions(check, lambda name: pictures.corruption_folder(stored, name) is not None)
    made = check.attempt(read_manifest, stored)
    severities = (made.severities if made else None) or SEVERITIES
    levels = [pictures.severities[severity - 1] for severity in severities]
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
    check.found = f"{len(there)} corruptions, {len(counts)} severities in all, {usual} images{_MADE if made else ''}"
    return check


def _check_split(data: Path, pictures: PictureSet, split: str) -> Check | None:
    part, folder = split.partition("/")[0], pictures.split_folder(data, split)
    # Folders next to label maps are not classes.
    if not folder.is_dir() or (data / f"{part}annot").is_dir():
        return None
    check = Check(f"{pictures.title} {part}", folder)
    listed = check.attempt(pictures.list_split, data, split)
    paths = {} if listed is None else listed.paths
    classes = sorted({name.split("/")[0] for name in paths})
    if "<class>" in split:
        classes = list_classes(folder)
    check.found = f"{_count(check, folder, paths, classes)} images, {len(classes)} classes"
    if len(classes) < pictures.class_count and pictures.find_class_list(data) is None:
        few = f"{len(classes)} class folders and no {pictures.class_lists[0]}"
        check.notes.append(f"{few}: labels number these folders, which fits a model of {len(classes)} classes")
    return check


def _count(check: Check, folder: Path, paths: Mapping[str, str], classes: Sequence[str]) -> int:
    """Count the images of a folder; check for empty files, empty classes, and the first header of each class."""

    def has_no_header(name: str) -> bool:
        try:
            size_of(folder / paths[name])
        except UserError:
            return True
        return False

    firsts: dict[str, str] = {}
    for name in paths:
        firsts.setdefault(name.split("/")[0], name)
    empty_files = [name for name, path in paths.items() if os.path.getsize(folder / path) == 0]
    filled = [name for name in firsts.values() if name not in empty_files]
    empty_classes = [name for name in classes if name not in firsts]
    check.report(folder, "class folders without images", empty_classes)
    check.report(folder, "empty files", empty_files)
    check.report(folder, "files without a readable header", filter(has_no_header, filled))
    return len(paths)


_ACDC_TRAIN = 400  # of each condition
_CITYSCAPES = {"train": 2975, "val": 500}
_SPLITS = ("train", "val", "test")
_THREADS = 4
_MOST_NAMED = 5  # unusable files of one folder that are named


def check_maps(data: Path) -> list[Check]:
    """Check every set of pictures with label maps in a folder."""
    checks = [_check_acdc(data), _check_cityscapes(data)]
    checks += [_check_folders(f"{split} pictures", layouts.find_folders, data, split) for split in _SPLITS]
    checks += [_check_folders("pictures", layouts.find_flat, data), _check_halves(data)]
    return [check for check in checks if check is not None]


def _check_acdc(data: Path) -> Check | None:
    folder = layouts.find_parent(data, "rgb_anon")
    if folder is None:
        return None
    check = Check("ACDC", folder)
    found = []
    for name in CONDITIONS:
        place = folder / name / "train"
        found.append(_check_part(check, data, layouts.list_acdc, name, place, _ACDC_TRAIN))
    check.found = f"training pictures with usable label maps: {', '.join(found)}"
    return check


def _check_cityscapes(data: Path) -> Check | None:
    folder = layouts.find_parent(data, "leftImg8bit")
    if folder is None:
        return None
    check, sizes = Check("Cityscapes", folder), dict(_CITYSCAPES)
    if not (folder / "train").is_dir():
        check.notes.append("no train/: a source model cannot be trained")
        del sizes["train"]
    found = []
    for split, size in sizes.items():
        found.append(_check_part(check, data, layouts.list_cityscapes, split, folder / split, size))
    check.found = f"pictures with usable label maps: {', '.join(found)}"
    return check


def _check_part(
    check: Check, data: Path, list_pairs: Callable[[Path, str], list[Pair]], name: str, folder: Path, expected: int
) -> str:
    """Check the pairs of one part of a set; return its name and the number of usable pairs."""
    pairs = check.attempt(list_pairs, data, name) or []
    if pairs:
        check.compare(folder, len(pairs), expected, "pictures")
    return f"{name} {_check_pairs(check, pairs)}"


def _check_folders(name: str, find: Callable[..., layouts.Folders | None], data: Path, *split: str) -> Check | None:
    check = Check(name, data)
    folders = check.attempt(find, data, *split)
    if folders is None:
        return check if check.problems else None
    check.folder = folders.images
    pairs = check.attempt(folders.listed) or []
    known = {pair.mask.name for pair in pairs}
    if alone := sorted(path.name for path in folders.masks.glob("*.png") if path.name not in known):
        check.notes.append(f"{folders.masks}: {len(alone)} label maps without a picture, first {alone[0]}")
    check.found = f"{_check_pairs(check, pairs)} with usable label maps, {len(folders.classes)} classes"
    return check


def _check_halves(data: Path) -> Check | None:
    """Report folders of pictures without label maps, and folders of label maps without pictures."""
    places = [("images", "masks"), *((split, f"{split}annot") for split in _SPLITS)]
    check = Check("pictures", data)
    for images, masks in places:
        if (data / masks).is_dir() and not (data / images).is_dir():
            check.problems.append(f"{data / masks} contains label maps of missing pictures: expected {images}/")
    if (data / "images").is_dir() and not (data / "masks").is_dir():
        check.problems.append(f"{data / 'images'} contains pictures without label maps: expected masks/")
    return check if check.problems else None


def _check_pairs(check: Check, pairs: Sequence[Pair]) -> int:
    """Read every pair, report the first problems, and count the usable pairs."""
    with ThreadPoolExecutor(_THREADS) as threads:
        problems = [problem for problem in threads.map(_problem_of, pairs) if problem]
    check.problems += problems[:_MOST_NAMED]
    if len(problems) > _MOST_NAMED:
        check.problems.append(f"{pairs[0].image.parent.parent}: {len(problems) - _MOST_NAMED} more unusable pairs")
    return len(pairs) - len(problems)


def _problem_of(pair: Pair) -> str:
    """The problem of a pair; empty if there is none."""
    try:
        check_picture(pair.image)
        layouts.complete([pair])
        read_mask(pair, size_of(pair.image))
    except UserError as error:
        return str(error)
    return ""
