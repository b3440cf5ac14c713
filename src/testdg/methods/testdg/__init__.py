"""TestDG, one file per section of the paper.

3.1 detection, 3.2 selection (and memory), 3.3 learning (and the amplifier, `methods.parts.bottleneck`), 3.4 update;
`networks` holds the networks, `rules` says where the released code differs, `method` puts all together.
"""

from testdg.methods.testdg.method import TestDG
from testdg.methods.testdg.settings import TestDGSettings

__all__ = ["TestDG", "TestDGSettings"]
