"""One battery of checks for every adapter, a user's own included."""

from testdg.testing import laws
from testdg.testing.battery import CHECKS, check_adapter, same_state, snapshot, stream

__all__ = ["CHECKS", "check_adapter", "laws", "same_state", "snapshot", "stream"]
