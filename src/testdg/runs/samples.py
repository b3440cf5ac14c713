"""A few pictures of a stream, small, for the figure: evenly over time, and those that adaptation changed first."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from testdg.data.pictures import to_pil
from testdg.files import replace_text, writing
from testdg.runs.maps import Maps
from testdg.runs.predictor import Prediction

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
    """Whether two maps stand beside the picture: the source's and the adapted prediction."""


class Samples:
    """Keeps a dozen of each kind: of a stream of any length, every first, second, fourth ... one."""

    def __init__(self, folder: Path, maps: Maps) -> None:
        self.folder, self.maps = folder / FOLDER, maps
        self.kept: dict[str, list[Sample]] = {"changed": [], "alike": []}
        self.seen = {"changed": 0, "alike": 0}
        self.every = {"changed": 1, "alike": 1}

    def add(self, prediction: Prediction, image: Tensor) -> None:
        """Look at a prediction, and keep it if it is its turn."""
        kind = "changed" if prediction.class_index != prediction.source_index or prediction.differs > 0.1 else "alike"
        if self.seen[kind] % self.every[kind] == 0:
            names = prediction.source_name, prediction.class_name
            about = (prediction.index, prediction.file, *names, prediction.differs, prediction.map is not None)
            self.kept[kind].append(Sample(self._picture(prediction, image), *about))
            if len(self.kept[kind]) > _MOST:
                self.kept[kind], self.every[kind] = self.kept[kind][::2], 2 * self.every[kind]
        self.seen[kind] += 1

    def chosen(self, most: int = _MOST) -> list[Sample]:
        """Those to show, in the order of the stream: changed ones first, as long as there are any."""
        changed, alike = _spread(self.kept["changed"], most), self.kept["alike"]
        return sorted([*changed, *_spread(alike, most - len(changed))], key=lambda sample: sample.index)

    def _picture(self, prediction: Prediction, image: Tensor) -> NDArray[np.uint8]:
        """The picture; of a segmentation, with the source's and the adapted prediction beside it."""
        picture = to_pil(image)
        picture.thumbnail((_SIDE, _SIDE))
        if prediction.map is None or prediction.source_map is None:
            return np.array(picture)
        maps = (Image.fromarray(self.maps.paint(one)) for one in (prediction.source_map, prediction.map))
        beside = [np.array(one.resize(picture.size, Image.Resampling.NEAREST)) for one in maps]
        return np.hstack([np.array(picture), *beside])

    def save(self) -> None:
        """Write the pictures, for a stream that goes on later."""
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            paths = {self._path(one.index): one for kept in self.kept.values() for one in kept}
            for path, sample in paths.items():
                if not path.exists():
                    Image.fromarray(sample.picture).save(path)
            about = {
                kind: [[one.index, one.file, one.before, one.after, one.differs, one.strip] for one in kept]
                for kind, kept in self.kept.items()
            }
            values = {"seen": self.seen, "every": self.every, "kept": about}
            replace_text(self.folder / "samples.json", json.dumps(values) + "\n")
        for path in self.folder.glob("*.png"):
            if path not in paths:  # it has made room for another one
                path.unlink(missing_ok=True)

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06}.png"

    def load(self) -> None:
        """Take back what `save` wrote; a figure can do without."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            values: dict[str, Any] = json.loads((self.folder / "samples.json").read_text(encoding="utf-8"))
            kept = {kind: [self._read(about) for about in values["kept"][kind]] for kind in self.kept}
            self.seen, self.every, self.kept = values["seen"], values["every"], kept

    def _read(self, about: list[Any]) -> Sample:
        with Image.open(self._path(about[0]), formats=("PNG",)) as picture:
            return Sample(np.array(picture), *about)


def _spread(samples: list[Sample], most: int) -> list[Sample]:
    """At most so many, evenly spaced."""
    count = min(most, len(samples))
    return [samples[place * len(samples) // count] for place in range(count)]
