"""folder-weather: any folder of pictures with label maps, put into fog, night, rain and snow."""

from functools import cached_property, partial
from pathlib import Path

from testdg.data.benchmarks.base import CorruptedImages, Options, WeatherBenchmark, fingerprint, register
from testdg.data.segmentation import layouts
from testdg.data.segmentation.classes import CITYSCAPES, PALETTES
from testdg.data.segmentation.files import Pair, PairFiles, readable, size_of
from testdg.data.stream import Domain, LabelledImages
from testdg.data.weather import weather
from testdg.errors import UserError

WIDEST = 1024
_STREAM, _TRAIN = ("test", "val"), ("train",)  # splits; for Cityscapes the last one is used


@register
class FolderWeather(WeatherBenchmark):
    """Photographs with label maps, in weather made on the fly: CamVid, Cityscapes or your own."""

    name = "folder-weather"
    title = "a folder of street scenes, 4 conditions made on the fly"
    needs = layouts.FOLDERS
    image_files = True
    has_severities = True
    data: Path

    def __init__(self, data: Path | None = None, options: Options | None = None) -> None:
        super().__init__(data, options)
        self.cities = layouts.find_parent(self.data, "leftImg8bit") is not None
        self.classes = CITYSCAPES if self.cities else self._folders(_STREAM).classes
        self.palette = PALETTES.get(self.classes, ())
        self._skipped: list[str] = []

    def _folders(self, splits: tuple[str, ...]) -> layouts.Folders:
        candidates = (layouts.find_folders(self.data, split) for split in splits)
        folders = next(filter(None, candidates), None)
        if folders is None and splits == _STREAM:
            folders = layouts.find_flat(self.data)
        if folders is None:
            training = "train/ and trainannot/, or images/train/ and masks/train/"
            expected = layouts.FOLDERS if splits == _STREAM else training
            message = f"data folder {self.data} does not contain pictures with label maps: expected {expected}"
            raise UserError(message, code="no-such-data")
        return folders

    @cached_property
    def files(self) -> PairFiles:
        """The pictures of the stream, in their own weather, and their label maps."""
        pairs = self._pairs(_STREAM, self.options.subset)[: self.options.images]
        if self.options.skip_unreadable:
            pairs, self._skipped = readable(pairs, self.options.workers)
        return self._open(pairs)

    def _pairs(self, splits: tuple[str, ...], subset: str | Path | None) -> list[Pair]:
        if self.cities:
            return layouts.complete(layouts.list_cityscapes(self.data, splits[-1], subset))
        return layouts.complete(self._folders(splits).listed(subset))

    @cached_property
    def _positions(self) -> list[int]:
        """Positions of the pictures among all, so that weather does not depend on the subset."""
        places = {pair.name: place for place, pair in enumerate(self._pairs(_STREAM, None))}
        return [places[pair.name] for pair in self.files.pairs]

    def _open(self, pairs: list[Pair]) -> PairFiles:
        """Pictures at the size of the first one, halved until it is at most 1024 px wide."""
        height, width = size_of(pairs[0].image)
        while width > WIDEST:
            height, width = height // 2, width // 2
        return PairFiles(pairs, (height, width), workers=self.options.workers)

    def make_domain(self, name: str, severity: int) -> Domain:
        corrupt = partial(weather, seed=self.options.corruption_seed)
        images, positions = self.files.images, self._positions
        source = CorruptedImages(images, name, severity, corrupt, positions=positions, cache=self.cache)
        return Domain(name, severity, source, self.files.masks)

    def train(self) -> LabelledImages:
        return LabelledImages(*self._open(self._pairs(_TRAIN, self.options.subset)).load())

    def test(self) -> LabelledImages:
        """The pictures of the stream, in their own weather."""
        return LabelledImages(*self.files.load())

    def origin(self) -> str:
        pictures = "Cityscapes" if self.cities else f"{self.files.pairs[0].image.parent.name}/"
        made = f"in weather made on the fly, seed {self.options.corruption_seed}"
        return f"{pictures} {made}; {self.options.describe_files(f'; {len(self.classes)} classes')}"

    def fingerprint(self) -> str:
        return fingerprint(self.files.identity())

    def unreadable(self) -> list[str]:
        return self._skipped
