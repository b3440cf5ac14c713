"""Numbers in label maps: classes, their colours, and the tables that translate stored numbers."""

import colorsys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testdg.data.image_files import read_lines
from testdg.errors import UserError

IGNORED = 255
_WRONG = 254  # in a table: an invalid number
VOID = ("void", "unlabelled", "unlabeled")

# name, number in the labelIds files of Cityscapes, colour; the place in the list is the trainId
_CITYSCAPES = (
    ("road", 7, (128, 64, 128)),
    ("sidewalk", 8, (244, 35, 232)),
    ("building", 11, (70, 70, 70)),
    ("wall", 12, (102, 102, 156)),
    ("fence", 13, (190, 153, 153)),
    ("pole", 17, (153, 153, 153)),
    ("traffic light", 19, (250, 170, 30)),
    ("traffic sign", 20, (220, 220, 0)),
    ("vegetation", 21, (107, 142, 35)),
    ("terrain", 22, (152, 251, 152)),
    ("sky", 23, (70, 130, 180)),
    ("person", 24, (220, 20, 60)),
    ("rider", 25, (255, 0, 0)),
    ("car", 26, (0, 0, 142)),
    ("truck", 27, (0, 0, 70)),
    ("bus", 28, (0, 60, 100)),
    ("train", 31, (0, 80, 100)),
    ("motorcycle", 32, (0, 0, 230)),
    ("bicycle", 33, (119, 11, 32)),
)
CITYSCAPES = tuple(name for name, _, _ in _CITYSCAPES)
CITYSCAPES_PALETTE = tuple(colour for _, _, colour in _CITYSCAPES)
COLOURS = dict(zip(CITYSCAPES, CITYSCAPES_PALETTE, strict=True))

# name, and the class of Cityscapes that shows it in the same colour
_CAMVID = {
    "sky": "sky", "building": "building", "pole": "pole", "road": "road", "pavement": "sidewalk", "tree": "vegetation",
    "sign": "traffic sign", "fence": "fence", "car": "car", "pedestrian": "person", "bicyclist": "rider",
}  # fmt: skip
CAMVID = tuple(_CAMVID)
CAMVID_PALETTE = tuple(COLOURS[name] for name in _CAMVID.values())


class LabelTable(NamedTuple):
    """Translates the numbers of a file, 0 to 255, to classes; `classes` lists the valid numbers in words."""

    numbers: NDArray[np.uint8]
    classes: str

    def apply(self, stored: NDArray[np.uint8], path: Path) -> NDArray[np.uint8]:
        """Classes of a label map; refuse invalid numbers."""
        translated = self.numbers[stored]
        wrong = translated == _WRONG
        if wrong.any():
            raise UserError(
                f"{path}: labels must be {self.classes}; got {int(stored[wrong][0])}: correct the map",
                code="wrong-labels",
            )
        return translated


def plain_table(classes: int, ignored: Iterable[int] = ()) -> LabelTable:
    """The table for numbers that are classes; 255 and some others are ignored."""
    numbers = np.full(256, _WRONG, np.uint8)
    numbers[:classes] = np.arange(classes)
    numbers[[*ignored, IGNORED]] = IGNORED
    others = " or ".join(str(number) for number in (*ignored, IGNORED))
    return LabelTable(numbers, f"0 to {classes - 1}, or {others} for none")


def cityscapes_table() -> LabelTable:
    """The table for labelIds of Cityscapes: 0 to 33, of which 19 are classes and the others are ignored."""
    numbers = np.full(256, _WRONG, np.uint8)
    numbers[[*range(34), IGNORED]] = IGNORED
    numbers[[number for _, number, _ in _CITYSCAPES]] = np.arange(len(_CITYSCAPES))
    return LabelTable(numbers, f"labelIds 0 to 33, or {IGNORED} for none")


def read_class_names(path: Path) -> tuple[tuple[str, ...], LabelTable]:
    """Read a list of classes, one per line; a last line "void" is the number that is ignored."""
    names = read_lines(path, "expected one class per line")
    void = len(names) - 1 if names and names[-1].lower() in VOID else None
    names = names[:void]
    if not names or len(set(names)) < len(names) or len(names) >= _WRONG:
        raise UserError(
            f"{path} must name 1 to {_WRONG - 1} classes, each once; got {len(names)} lines", code="wrong-classes"
        )
    return tuple(names), plain_table(len(names), () if void is None else (void,))


def default_palette(classes: int) -> list[tuple[int, int, int]]:
    """One colour per class, evenly spaced hues, every other one darker."""
    hues = ((number / classes, 0.75, 0.95 if number % 2 else 0.6) for number in range(classes))
    return [(round(255 * r), round(255 * g), round(255 * b)) for r, g, b in (colorsys.hsv_to_rgb(*hue) for hue in hues)]
