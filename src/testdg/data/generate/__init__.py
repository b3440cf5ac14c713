"""Writers of corrupted data sets in the published layouts: arrays, or folders of pictures."""

from testdg.data.generate.arrays import write_arrays
from testdg.data.generate.pictures import write_pictures
from testdg.data.generate.plan import ALL, Plan, Tell
from testdg.data.manifest import MANIFEST

__all__ = ["ALL", "MANIFEST", "Plan", "Tell", "write_arrays", "write_pictures"]
