"""imagenet-c: the published files of ImageNet-C, or the corruptions made from the clean validation images."""

from types import MappingProxyType

from testdg.data.benchmarks.base import register
from testdg.data.benchmarks.corruption import PictureBenchmark
from testdg.data.corruptions import IMAGENET as PARAMETERS
from testdg.data.picture_sets import PictureSet
from testdg.data.pictures import IMAGENET_CROP

IMAGENET = PictureSet(
    title="ImageNet",
    stored="ImageNet-C",
    class_count=1000,
    crop=IMAGENET_CROP,
    parameters=PARAMETERS,
    # The archives of the published set unpack into these.
    groups=("", "noise", "blur", "weather", "digital", "extra"),
    class_lists=("classes.txt", "LOC_synset_mapping.txt"),
)


@register
class ImageNetC(PictureBenchmark):
    """ImageNet validation images under corruptions; any folder of classes in the same layout works."""

    name = "imagenet-c"
    title = "ImageNet, 15 corruptions (and 4 extra)"
    batch_size = 50
    data_set = IMAGENET
    needs = IMAGENET.needs
    paper = MappingProxyType(
        {"size": 256, "crop": (224, 224), "resample": "bilinear", "mean": (0.0,) * 3, "std": (1.0,) * 3}
    )
