"""Several processes that `torchrun` has started: which command they are for, and which of them speaks."""

import os
import signal
import sys
import time

from testdg.errors import UserError

FIRST_WORD = 30.0
"""Seconds that the others leave to the first process to tell a mistake that all have made; then it ends them."""


def processes() -> int:
    """How many processes of torchrun run this command; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def check(command: str) -> None:
    """Refuse commands that are not one stream."""
    if processes() > 1 and command != "run":
        raise UserError(f"torchrun shares one stream between processes, as in `testdg run`: start {command} without it")


def join(device: str | None) -> None:
    """Let the processes of torchrun share batches; one that torchrun ends, since another has ended, says so."""
    if processes() > 1:
        from testdg import distributed
        from testdg.models.device import find_device

        distributed.join(find_device(device or "auto").type)
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def speaker(error: Exception | None) -> str:
    """Who tells of an error: the first process where all have it, for then it ends them; or the one that has it."""
    if processes() == 1 or os.environ["RANK"] == "0":
        return "testdg"
    group = sys.modules.get("testdg.distributed.group")
    alike = group is None or group.current() is None or isinstance(error, group.ToldElsewhere)
    if error is not None and alike:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(FIRST_WORD)
    return f"testdg, process {os.environ['RANK']} of {processes()}"
