"""What is in folders of pictures with label maps: how many, which have no partner, and which cannot be used."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testdg.data.findings import Check
from testdg.data.segmentation import layouts
from testdg.data.segmentation.files import Pair, check_picture, read_mask, size_of
from testdg.data.weather import CONDITIONS
from testdg.errors import UserError

LAYOUTS = "rgb_anon and gt (ACDC), leftImg8bit and gtFine (Cityscapes), images and masks, test and testannot (CamVid)"
_ACDC_TRAIN = 400  # of each condition
_CITYSCAPES = {"train": 2975, "val": 500}
_SPLITS = ("train", "val", "test")
_THREADS = 4
_TOLD = 5  # files that are named, of those of one folder that cannot be used


def check_maps(data: Path) -> list[Check]:
    """Look at every set of pictures with label maps in a folder."""
    checks = [_check_acdc(data), _check_cityscapes(data)]
    checks += [_check_folders(f"{split} pictures", layouts.find_folders, data, split) for split in _SPLITS]
    checks += [_check_folders("pictures", layouts.find_flat, data), _check_halves(data)]
    return [check for check in checks if check is not None]


def _check_acdc(data: Path) -> Check | None:
    """Look at the training split of ACDC, condition by condition."""
    folder = layouts.find_parent(data, "rgb_anon")
    if folder is None:
        return None
    check, counts = Check("ACDC", folder), []
    for condition in CONDITIONS:
        pairs = check.attempt(layouts.list_acdc, data, condition) or []
        if pairs:
            check.compare(folder / condition / "train", len(pairs), _ACDC_TRAIN, "pictures")
        counts.append(f"{condition} {_check_pairs(check, pairs)}")
    check.found = f"training pictures with usable label maps: {', '.join(counts)}"
    return check


def _check_cityscapes(data: Path) -> Check | None:
    """Look at the pictures of Cityscapes that have public label maps."""
    folder = layouts.find_parent(data, "leftImg8bit")
    if folder is None:
        return None
    check, counts = Check("Cityscapes", folder), []
    for split, expected in _CITYSCAPES.items():
        if split == "train" and not (folder / split).is_dir():
            check.notes.append("no train/: a source model cannot be trained")
            continue
        pairs = check.attempt(layouts.list_cityscapes, data, split) or []
        if pairs:
            check.compare(folder / split, len(pairs), expected, "pictures")
        counts.append(f"{split} {_check_pairs(check, pairs)}")
    check.found = f"pictures with usable label maps: {', '.join(counts)}"
    return check


def _check_folders(name: str, find: Callable[..., layouts.Folders | None], data: Path, *split: str) -> Check | None:
    """Look at a folder of pictures with a folder of label maps beside it."""
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
    """Tell folders of pictures without one of label maps, and the other way round."""
    places = [("images", "masks"), *((split, f"{split}annot") for split in _SPLITS)]
    check = Check("pictures", data)
    for images, masks in places:
        if (data / masks).is_dir() and not (data / images).is_dir():
            check.problems.append(f"{data / masks} holds label maps of pictures that are missing: expected {images}/")
    if (data / "images").is_dir() and not (data / "masks").is_dir():
        check.problems.append(f"{data / 'images'} holds pictures without label maps: expected masks/")
    return check if check.problems else None


def _check_pairs(check: Check, pairs: Sequence[Pair]) -> int:
    """Try every pair, tell what is wrong with the first ones, and count those that can be used."""
    with ThreadPoolExecutor(_THREADS) as threads:
        mistakes = [told for told in threads.map(_mistake, pairs) if told]
    check.problems += mistakes[:_TOLD]
    if len(mistakes) > _TOLD:
        check.problems.append(f"{pairs[0].image.parent.parent}: {len(mistakes) - _TOLD} more that cannot be used")
    return len(pairs) - len(mistakes)


def _mistake(pair: Pair) -> str:
    """What is wrong with a pair; empty where nothing is."""
    try:
        check_picture(pair.image)
        layouts.complete([pair])
        read_mask(pair, size_of(pair.image))
    except UserError as error:
        return str(error)
    return ""
