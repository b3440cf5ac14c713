"""Writers of corrupted data sets in the published layouts: arrays, or folders of pictures."""

from testdg.data.generate.sets import write_arrays, write_pictures, write_set
from testdg.data.manifest import ALL, MANIFEST, CorruptOptions, Tell

__all__ = ["ALL", "MANIFEST", "CorruptOptions", "Tell", "write_arrays", "write_pictures", "write_set"]
