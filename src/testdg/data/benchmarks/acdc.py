"""acdc: real street scenes in fog, at night, in rain and in snow, for models trained on Cityscapes."""

from pathlib import Path
from types import MappingProxyType

from testdg.data.benchmarks.base import Options, WeatherBenchmark, fingerprint, register
from testdg.data.segmentation.classes import CITYSCAPES, CITYSCAPES_PALETTE
from testdg.data.segmentation.files import PairFiles, readable
from testdg.data.segmentation.layouts import complete, find_parent, list_acdc, list_cityscapes
from testdg.data.stream import Domain, LabelledImages
from testdg.errors import UserError

SIZE = (540, 960)
SOURCE_SIZE = (512, 1024)


@register
class Acdc(WeatherBenchmark):
    """The training split of ACDC, 400 pictures a condition, read at 960 x 540 px; label maps keep their size."""

    name = "acdc"
    title = "ACDC: street scenes in 4 conditions"
    classes = CITYSCAPES
    palette = CITYSCAPES_PALETTE
    needs = "rgb_anon/<condition>/train/ and gt/<condition>/train/"
    image_files = True
    paper = MappingProxyType(
        {"size": SIZE, "resample": "bilinear", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    )
    data: Path

    def __init__(self, data: Path | None = None, options: Options | None = None) -> None:
        super().__init__(data, options)
        if find_parent(self.data, "rgb_anon") is None:
            message = f"data folder {self.data} does not contain ACDC: expected rgb_anon/fog/train/ (and so on) and gt/"
            raise UserError(message, code="no-such-data")
        self._refuse_seed()
        self._files: dict[str, PairFiles] = {}
        self._skipped: dict[str, list[str]] = {}

    def files(self, name: str) -> PairFiles:
        """Pictures and label maps of a condition."""
        if name not in self._files:
            pairs = complete(list_acdc(self.data, name, self.options.subset))[: self.options.images]
            if self.options.skip_unreadable:
                pairs, self._skipped[name] = readable(pairs, self.options.workers)
            self._files[name] = PairFiles(pairs, SIZE, workers=self.options.workers)
        return self._files[name]

    def make_domain(self, name: str, severity: int) -> Domain:
        files = self.files(name)
        return Domain(name, None, files.images, files.masks)

    def train(self) -> LabelledImages:
        """The training pictures of Cityscapes, if the data folder has it, at 1024 x 512 px."""
        return self._source("train")

    def test(self) -> LabelledImages:
        """The validation pictures of Cityscapes, if the data folder has it, at 1024 x 512 px."""
        return self._source("val")

    def _source(self, split: str) -> LabelledImages:
        pairs = complete(list_cityscapes(self.data, split, self.options.subset))
        return LabelledImages(*PairFiles(pairs, SOURCE_SIZE, SOURCE_SIZE, self.options.workers).load())

    def origin(self) -> str:
        return f"ACDC, training split; {self.options.describe_files()}"

    def fingerprint(self) -> str:
        return fingerprint([part for name in self.order for part in self.files(name).identity()])

    def unreadable(self) -> list[str]:
        return [f"{name}/{file}" for name, files in self._skipped.items() for file in files]
