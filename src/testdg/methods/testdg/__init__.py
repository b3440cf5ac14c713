"""TestDG, one file per section of the paper.

3.1 and 3.2 memory and selection, 3.3 learning (and the amplifier, `methods.parts.bottleneck`), 3.4 update;
`networks` has the networks, `method` the batch, and `released` what the released code does otherwise.
"""

from testdg.methods.testdg.method import TestDG
from testdg.methods.testdg.settings import TestDGSettings

__all__ = ["TestDG", "TestDGSettings"]
