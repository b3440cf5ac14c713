"""What a stream of pictures amounts to: counts over time, maps of classes, and a few sample pictures."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from testdg.data.pictures import to_pil
from testdg.data.segmentation.classes import PALETTES, default_palette
from testdg.files import replace_text, writing
from testdg.runs.predictions import Prediction

_MOST_BINS = 256
_MOST_CHANGES = 1000


@dataclass
class Bin:
    """Sums over consecutive pictures."""

    count: int = 0
    confidence: float = 0.0
    source_confidence: float = 0.0
    differs: float = 0.0

    def add(self, other: Bin) -> None:
        self.count += other.count
        self.confidence += other.confidence
        self.source_confidence += other.source_confidence
        self.differs += other.differs

    def mean(self, name: str) -> float:
        """The mean of one of the sums; 0 without pictures."""
        return float(getattr(self, name)) / self.count if self.count else 0.0


@dataclass
class StreamStatistics:
    """Statistics of the rows of predictions as they are written, in bounded memory."""

    all: Bin = field(default_factory=Bin)
    bins: list[Bin] = field(default_factory=list)
    width: int = 1
    """Pictures in a bin; it doubles when there are too many bins."""
    changes: int = 0
    changed_at: list[int] = field(default_factory=list)
    """Positions of the first thousand detected changes among the predictions."""
    learnt: int = 0
    skipped: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    source_classes: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        if int(row["change"]):
            self.changes += 1
            self.changed_at += [self.all.count] if len(self.changed_at) < _MOST_CHANGES else []
        one = Bin(1, *(float(row[key]) for key in ("confidence", "source_confidence", "differs")))
        self.all.add(one)
        if not self.bins or self.bins[-1].count >= self.width:
            if len(self.bins) == _MOST_BINS:
                for left, right in zip(self.bins[::2], self.bins[1::2], strict=True):
                    left.add(right)
                self.bins, self.width = self.bins[::2], 2 * self.width
            self.bins.append(Bin())
        self.bins[-1].add(one)
        self.learnt += int(row["learnt"])
        self.classes[str(row["class"])] += 1
        self.source_classes[str(row["source_class"])] += 1

    def summary(self) -> dict[str, Any]:
        return {
            "predictions": self.all.count,
            "skipped": self.skipped,
            "confidence": round(self.all.mean("confidence"), 4),
            "source_confidence": round(self.all.mean("source_confidence"), 4),
            "changed_by_adaptation": round(self.all.mean("differs"), 4),
            "changes": self.changes,
            "learnt": self.learnt,
            "classes": dict(self.classes.most_common(20)),
            "source_classes": dict(self.source_classes.most_common(20)),
        }


class Maps:
    """Writes `maps/` (numbers of classes) and `colours/` in the folder of a stream."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.places = (folder / "maps", folder / "colours")
        self.colours = np.array(PALETTES.get(tuple(names)) or default_palette(len(names)), np.uint8)

    def write(self, prediction: Prediction) -> None:
        """Write both pictures of a prediction; called before its row is written, so that every row has its pictures."""
        if prediction.map is None:
            return
        kind = np.uint8 if len(self.colours) <= 256 else np.uint16
        pictures = prediction.map.astype(kind), self.colours[prediction.map]
        for place, values in zip(self.places, pictures, strict=True):
            with writing(place):
                place.mkdir(exist_ok=True)
                Image.fromarray(values).save(place / map_name(prediction))


def map_name(prediction: Prediction) -> str:
    """A file name that sorts in the order of the stream; nothing in the name of a picture can leave the folder."""
    name = prediction.file.rpartition("/")[2].rpartition(".")[0]
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80]
    return f"{prediction.index:06}-{stem}.png" if stem else f"{prediction.index:06}.png"


FOLDER = "samples"
_MOST = 12
_SIDE = 160  # pixels of the longer side


@dataclass
class Sample:
    """A small picture and what was predicted for it."""

    picture: NDArray[np.uint8]
    index: int
    file: str
    before: str
    after: str
    differs: float
    strip: bool
    """Whether two maps are next to the picture: the predictions of the source and of the adapted model."""


class SamplePictures:
    """Stores up to a dozen pictures of each kind; the interval between them doubles, so that they cover the stream."""

    def __init__(self, folder: Path, maps: Maps) -> None:
        self.folder, self.maps = folder / FOLDER, maps
        self.stored: dict[str, list[Sample]] = {"changed": [], "alike": []}
        self.seen = {"changed": 0, "alike": 0}
        self.every = {"changed": 1, "alike": 1}

    def add(self, prediction: Prediction, image: Tensor) -> None:
        """Store a prediction if it is its turn."""
        changed = prediction.class_index != prediction.source_class_index or prediction.differs > 0.1
        kind = "changed" if changed else "alike"
        if self.seen[kind] % self.every[kind] == 0:
            names = prediction.source_class_name, prediction.class_name
            about = (prediction.index, prediction.file, *names, prediction.differs, prediction.map is not None)
            self.stored[kind].append(Sample(self._picture(prediction, image), *about))
            if len(self.stored[kind]) > _MOST:
                self.stored[kind], self.every[kind] = self.stored[kind][::2], 2 * self.every[kind]
        self.seen[kind] += 1

    def chosen(self) -> list[Sample]:
        """A dozen samples, evenly spaced, in the order of the stream; changed predictions have priority."""
        found: list[Sample] = []
        for samples in self.stored.values():
            count = min(_MOST - len(found), len(samples))
            found += [samples[place * len(samples) // count] for place in range(count)]
        return sorted(found, key=lambda sample: sample.index)

    def _picture(self, prediction: Prediction, image: Tensor) -> NDArray[np.uint8]:
        """The picture; for segmentation, with the predictions of the source and of the adapted model next to it."""
        picture = to_pil(image)
        picture.thumbnail((_SIDE, _SIDE))
        parts = [np.array(picture)]
        for pixels in (prediction.source_map, prediction.map):
            if pixels is not None:
                painted = Image.fromarray(self.maps.colours[pixels])
                parts.append(np.array(painted.resize(picture.size, Image.Resampling.NEAREST)))
        return np.hstack(parts)

    def save(self) -> None:
        """Write the pictures, for a stream that is resumed."""
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            paths = {self._path(one.index): one for stored in self.stored.values() for one in stored}
            for path, sample in paths.items():
                if not path.exists():
                    Image.fromarray(sample.picture).save(path)
            about = {}
            for kind, stored in self.stored.items():
                about[kind] = [list(vars(one).values())[1:] for one in stored]  # all but the picture
            values = {"seen": self.seen, "every": self.every, "stored": about}
            replace_text(self.folder / "samples.json", json.dumps(values) + "\n")
        for path in self.folder.glob("*.png"):
            if path not in paths:  # it was replaced by another one
                path.unlink(missing_ok=True)

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06}.png"

    def load(self) -> None:
        """Read what `save` wrote; without it, the figure shows later pictures only."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            values = json.loads((self.folder / "samples.json").read_text(encoding="utf-8"))
            stored: dict[str, list[Sample]] = {kind: [] for kind in self.stored}
            for kind in stored:
                for about in values["stored"][kind]:
                    with Image.open(self._path(about[0]), formats=("PNG",)) as picture:
                        stored[kind].append(Sample(np.array(picture), *about))
            self.seen, self.every, self.stored = values["seen"], values["every"], stored
