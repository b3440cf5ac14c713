"""tiny-imagenet-c: the published files of Tiny-ImageNet-C, or the corruptions made from the clean validation images."""

from testdg.data.benchmarks.base import register
from testdg.data.benchmarks.corruption import PictureBenchmark
from testdg.data.corruptions import ParameterSet
from testdg.data.corruptions.parameters import row
from testdg.data.picture_sets import PictureSet
from testdg.data.pictures import Crop

PARAMETERS = ParameterSet(  # of the recipe for 64 px; the columns are those of the set for 32 px
    "tiny-imagenet",
    {
        "gaussian_noise": row(0.04, 0.08, 0.12, 0.15, 0.18),
        "shot_noise": row(250, 100, 50, 30, 15),
        "impulse_noise": row(0.01, 0.02, 0.05, 0.08, 0.14),
        "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        "zoom_blur": ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        "frost": ((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
        "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        "brightness": row(0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": row(0.4, 0.3, 0.2, 0.1, 0.05),
        "elastic_transform": (
            (0, 0, 0.08),
            (0.05, 0.3, 0.06),
            (0.1, 0.08, 0.06),
            (0.1, 0.03, 0.03),
            (0.16, 0.03, 0.02),
        ),
        "pixelate": row(0.9, 0.8, 0.7, 0.6, 0.5),
        "jpeg_compression": row(65, 58, 50, 40, 25),
        "speckle_noise": row(0.15, 0.2, 0.25, 0.3, 0.35),
        "gaussian_blur": row(0.5, 0.75, 1, 1.25, 1.5),
        "spatter": (
            (0.62, 0.1, 0.7, 0.7, 0.6, 0),
            (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0),
            (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ),
        "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
    },
)

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
