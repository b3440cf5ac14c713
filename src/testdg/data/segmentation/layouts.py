"""Layouts of data sets of pictures and label maps: ACDC, Cityscapes, CamVid, and plain folders."""

import os
from pathlib import Path
from typing import NamedTuple

from testdg.data.image_files import choose_images, is_image
from testdg.data.segmentation.classes import (
    CAMVID,
    CITYSCAPES,
    LabelTable,
    cityscapes_table,
    plain_table,
    read_class_names,
)
from testdg.data.segmentation.files import Pair
from testdg.errors import UserError

CLASS_LIST = "classes.txt"
FOLDERS = "leftImg8bit/val/ and gtFine/val/, test/ and testannot/, val/ and valannot/, or images/ and masks/"
_ACDC_IMAGE, _ACDC_MASK = "_rgb_anon.png", "_gt_labelTrainIds.png"
_CITY_IMAGE, _CITY_MASK, _CITY_IDS = "_leftImg8bit.png", "_gtFine_labelTrainIds.png", "_gtFine_labelIds.png"


def find_parent(data: Path, name: str) -> Path | None:
    """Find a folder in the data folder or one level below: archives unpack into a folder of their own."""
    places = [data, *sorted(data.iterdir())]
    return next((place / name for place in places if os.path.isdir(place / name)), None)


def _find_both(data: Path, images: str, masks: str, part: str) -> tuple[Path, Path]:
    """The folders of pictures and label maps, which have different parents."""
    pictures, maps = find_parent(data, images), find_parent(data, masks)
    if pictures is None or maps is None:
        lacks = images if pictures is None else masks
        raise UserError(
            f"{data} does not contain {lacks}/: expected {images}/{part}/ and {masks}/{part}/",
            code="no-such-data",
        )
    return pictures / part, maps / part


def list_acdc(data: Path, condition: str, subset: str | Path | None = None) -> list[Pair]:
    """Training pictures of one condition of ACDC, sorted by sequence and file; label maps may be missing."""
    images, masks = (folder / "train" for folder in _find_both(data, "rgb_anon", "gt", condition))
    table = plain_table(len(CITYSCAPES))
    names = choose_images(images, _list_nested(images, _ACDC_IMAGE), subset)
    return [Pair(name, images / name, masks / (name.removesuffix(_ACDC_IMAGE) + _ACDC_MASK), table) for name in names]


def list_cityscapes(data: Path, split: str, subset: str | Path | None = None) -> list[Pair]:
    """Pictures of one split of Cityscapes, sorted by city and file; label maps may be missing."""
    images, masks = _find_both(data, "leftImg8bit", "gtFine", split)
    tables, pairs = {_CITY_MASK: plain_table(len(CITYSCAPES)), _CITY_IDS: cityscapes_table()}, []
    for name in choose_images(images, _list_nested(images, _CITY_IMAGE), subset):
        frame = name.removesuffix(_CITY_IMAGE)
        made = (masks / f"{frame}{_CITY_MASK}").is_file()  # every download has the labelIds
        kind = _CITY_MASK if made else _CITY_IDS
        pairs.append(Pair(name, images / name, masks / f"{frame}{kind}", tables[kind]))
    return pairs


class Folders(NamedTuple):
    """A folder of pictures, a folder of label maps with the same names, and the classes."""

    images: Path
    masks: Path
    classes: tuple[str, ...]
    table: LabelTable

    def listed(self, subset: str | Path | None = None) -> list[Pair]:
        """The pictures, sorted; label maps may be missing."""
        files = sorted(path.name for path in self.images.iterdir() if _is_picture(path))
        if not files:
            raise UserError(f"{self.images} contains no images: expected .jpg or .png files in it", code="no-images")
        _check_names(self.images, files)
        parent = self.images.parent
        names = choose_images(parent, [f"{self.images.name}/{file}" for file in files], subset)
        return [Pair(name, parent / name, self.masks / f"{Path(name).stem}.png", self.table) for name in names]


def find_folders(data: Path, split: str) -> Folders | None:
    """Find the pictures of a split: CamVid's `<split>` and `<split>annot`, or `images` and `masks`."""
    places = (data / split, data / f"{split}annot"), (data / "images" / split, data / "masks" / split)
    found = next((place for place in places if place[0].is_dir() and place[1].is_dir()), None)
    return None if found is None else Folders(*found, *find_classes(data, found[1]))


def find_flat(data: Path) -> Folders | None:
    images, masks = data / "images", data / "masks"
    if not (images.is_dir() and masks.is_dir() and any(map(_is_picture, images.iterdir()))):
        return None
    return Folders(images, masks, *find_classes(data, masks))


def find_classes(data: Path, masks: Path) -> tuple[tuple[str, ...], LabelTable]:
    """The classes in the list of the data folder, or those of CamVid if label maps are named like its own."""
    if (data / CLASS_LIST).is_file():
        return read_class_names(data / CLASS_LIST)
    if masks.name.endswith("annot"):
        return CAMVID, plain_table(len(CAMVID), (len(CAMVID),))
    raise UserError(
        f"{data / CLASS_LIST} is missing: list the classes of {masks} in it, one per line, from class 0",
        code="no-classes",
    )


def _list_nested(folder: Path, suffix: str) -> list[str]:
    """Files of a suffix, as `<sequence>/<file>`, sorted by both."""
    names = sorted(f"{path.parent.name}/{path.name}" for path in folder.glob(f"*/*{suffix}"))
    if not names:
        raise UserError(f"{folder} contains no images: expected <folder>/<file>{suffix} in it", code="no-images")
    return names


def _is_picture(path: Path) -> bool:
    """Whether an entry is to be read; broken links are, so that they raise an error and are not left out silently."""
    return is_image(path.name) and not path.is_dir()


def _check_names(folder: Path, files: list[str]) -> None:
    """Refuse pictures whose names only differ in the suffix: they would share a label map."""
    known: dict[str, str] = {}
    for file in files:
        other = known.setdefault(Path(file).stem, file)
        if other != file:
            raise UserError(
                f"{folder} contains {other} and {file}, which would share a label map: keep one",
                code="duplicate",
            )


def complete(pairs: list[Pair]) -> list[Pair]:
    """Refuse a picture without a label map."""
    for pair in pairs:
        if not pair.mask.is_file():
            raise UserError(f"{pair.image} has no label map: expected {pair.mask}", code="no-label-map")
    return pairs
