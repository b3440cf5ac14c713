"""Numbers in label maps: classes, their colours, and the tables that translate stored numbers."""

import colorsys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from testdg.data.image_files import read_lines
from testdg.errors import UserError
from testdg.files import read_toml

IGNORED = 255
_WRONG = 254  # in a table: an invalid number
VOID = ("void", "unlabelled", "unlabeled")

Colour = tuple[int, int, int]


class _Names(msgspec.Struct):
    """The content of classes.toml."""

    cityscapes: dict[str, tuple[int, Colour]]
    camvid: dict[str, str]


_NAMES = msgspec.convert(read_toml(Path(__file__).with_suffix(".toml"), "classes"), _Names)
CITYSCAPES = tuple(_NAMES.cityscapes)
COLOURS = {name: colour for name, (_, colour) in _NAMES.cityscapes.items()}
CITYSCAPES_PALETTE = tuple(COLOURS.values())
CAMVID = tuple(_NAMES.camvid)
CAMVID_PALETTE = tuple(COLOURS[name] for name in _NAMES.camvid.values())
PALETTES = {CITYSCAPES: CITYSCAPES_PALETTE, CAMVID: CAMVID_PALETTE}
"""Colours of the classes of a data set."""


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
    numbers[[number for number, _ in _NAMES.cityscapes.values()]] = np.arange(len(CITYSCAPES))
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


def default_palette(classes: int) -> list[Colour]:
    """One colour per class, evenly spaced hues, every other one darker."""
    palette = []
    for number in range(classes):
        value = 0.95 if number % 2 else 0.6
        red, green, blue = colorsys.hsv_to_rgb(number / classes, 0.75, value)
        palette.append((round(255 * red), round(255 * green), round(255 * blue)))
    return palette
