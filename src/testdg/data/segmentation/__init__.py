"""Pictures with label maps: readers of the layouts that people have."""

from testdg.data.segmentation.classes import CAMVID, CAMVID_PALETTE, CITYSCAPES, CITYSCAPES_PALETTE, IGNORED
from testdg.data.segmentation.files import Pair, PairFiles
from testdg.data.segmentation.layouts import acdc_pairs, cityscapes_pairs, find_flat, find_folders

__all__ = [
    "CAMVID",
    "CAMVID_PALETTE",
    "CITYSCAPES",
    "CITYSCAPES_PALETTE",
    "IGNORED",
    "Pair",
    "PairFiles",
    "acdc_pairs",
    "cityscapes_pairs",
    "find_flat",
    "find_folders",
]
