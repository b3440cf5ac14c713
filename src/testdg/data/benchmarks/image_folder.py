"""image-folder: any pictures sorted by class, corrupted on the fly at the size of the model."""

from collections.abc import Sequence

import torch

from testdg.data.benchmarks.base import register
from testdg.data.benchmarks.corruption import PictureBenchmark
from testdg.data.corruptions import IMAGENET as PARAMETERS
from testdg.data.image_files import ImageFiles
from testdg.data.picture_sets import PictureSet
from testdg.data.pictures import Crop

SIDE = 224
"""Side of a picture in pixels, unless a model needs another one."""

IMAGE_FOLDER = PictureSet(
    title="picture in folders of classes",
    stored="image-folder-C",
    class_count=0,
    crop=Crop(SIDE, SIDE),
    parameters=PARAMETERS,
)


@register
class ImageFolder(PictureBenchmark):
    """The user's pictures, `<class>/<file>`, shuffled; if the folder has `val/` and `train/`, those of `val/`."""

    name = "image-folder"
    title = "pictures of your own, by class; 15 corruptions (and 4 extra)"
    batch_size = 20
    data_set = IMAGE_FOLDER
    needs = "<class>/<file>, or val/<class>/<file> (and train/, for training)"

    def adopt(self, side: int | None, classes: Sequence[str]) -> None:
        """Read pictures at the input size of the model, and use its order of classes if it has them all."""
        self.decoder.crop = Crop(side or SIDE, side or SIDE)
        if set(self.classes) <= set(classes):
            self.classes = tuple(classes)
        self._domains.clear()

    def _ordered(self, files: ImageFiles) -> ImageFiles:
        """Draw the requested number by the seed, spread over the classes, and shuffle them."""
        if self._listed:
            return super()._ordered(files)
        generator = torch.Generator().manual_seed(self.options.corruption_seed)
        drawn = _shuffled(files.names, generator)
        chosen = super()._ordered(files.chosen(sorted(drawn, key=lambda name: name.split("/")[0])))
        return chosen.chosen(_shuffled(chosen.names, generator))

    def _describe_order(self) -> str:
        if self._listed:
            return super()._describe_order()
        count = "" if self.options.images is None else f"; {self.options.images} images, spread over the classes"
        side = self.decoder.crop.side
        return f"{count}; shuffled by seed {self.options.corruption_seed}; read at {side} x {side} px"


def _shuffled(names: Sequence[str], generator: torch.Generator) -> list[str]:
    return [names[place] for place in torch.randperm(len(names), generator=generator).tolist()]
