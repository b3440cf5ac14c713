"""Segmentations as pictures: the class of every pixel as a number, and in colours."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from testdg.data.segmentation.classes import CAMVID, CAMVID_PALETTE, CITYSCAPES, CITYSCAPES_PALETTE, default_palette
from testdg.files import writing
from testdg.runs.predictor import Map, Prediction

_KNOWN = {CITYSCAPES: CITYSCAPES_PALETTE, CAMVID: CAMVID_PALETTE}


class Maps:
    """Writes `maps/` (numbers of classes) and `colours/` in the folder of a stream."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.places = (folder / "maps", folder / "colours")
        self.colours = np.array(_KNOWN.get(tuple(names)) or default_palette(len(names)), np.uint8)

    def write(self, prediction: Prediction) -> None:
        """Write both pictures of a prediction; before its row, so that a row has them."""
        if prediction.map is None:
            return
        kind = np.uint8 if len(self.colours) <= 256 else np.uint16
        for place, values in zip(self.places, (prediction.map.astype(kind), self.paint(prediction.map)), strict=True):
            with writing(place):
                place.mkdir(exist_ok=True)
                Image.fromarray(values).save(place / map_name(prediction))

    def paint(self, values: Map) -> Any:
        """Numbers of classes as colours, (H, W, 3)."""
        return self.colours[values]


def map_name(prediction: Prediction) -> str:
    """A name that sorts as the stream goes, and that no picture can lead out of the folder."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", prediction.file.rpartition("/")[2].rpartition(".")[0])[:80]
    return f"{prediction.index:06}-{stem}.png" if stem else f"{prediction.index:06}.png"
