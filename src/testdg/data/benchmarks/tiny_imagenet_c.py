"""tiny-imagenet-c: the published files of Tiny-ImageNet-C, or the corruptions made from the clean validation images."""

from testdg.data.benchmarks.base import register
from testdg.data.benchmarks.corruption import PictureBenchmark
from testdg.data.corruptions import TINY_IMAGENET as PARAMETERS
from testdg.data.picture_sets import PictureSet
from testdg.data.pictures import Crop

TINY_IMAGENET = PictureSet(
    title="Tiny ImageNet",
    stored="Tiny-ImageNet-C",
    class_count=200,
    crop=Crop(edge=64, side=64),
    parameters=PARAMETERS,
    clean="tiny-imagenet-200",
    test="val/images",
    train="train/<class>/images",
    annotations="val/val_annotations.txt",
    class_names="wnids.txt",
)


@register
class TinyImageNetC(PictureBenchmark):
    """The 10,000 validation images of Tiny ImageNet, 64 x 64, under corruptions."""

    name = "tiny-imagenet-c"
    title = "Tiny ImageNet (200 classes), 15 corruptions (and 4 extra)"
    batch_size = 50
    data_set = TINY_IMAGENET
    needs = TINY_IMAGENET.needs
