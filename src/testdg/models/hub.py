"""Models by their names on the hub: whether the hub answers, and downloads."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from testdg.errors import UserError
from testdg.models.alignment import FILE
from testdg.models.untrusted import CONFIG, WEIGHTS, first_line

PATIENCE = 2.0
"""Seconds to wait for an answer of the hub; then it counts as unreachable."""


def fetch(name: str) -> Path:
    """Download the configuration, preprocessor, weights and alignment of a model; return their folder.

    The name of a folder that does not exist is recognised by its form, or by an existing parent folder.
    """
    from transformers.utils import cached_file

    parent = Path(name).expanduser().parent
    by_form = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/")
    if by_form or (parent != Path() and parent.is_dir()):
        raise UserError(f"folder {name} does not exist", code="no-such-file")

    here = not reachable()
    try:
        config = cached_file(name, CONFIG, local_files_only=here)
        for file in ("preprocessor_config.json", WEIGHTS, FILE):  # split weights and older formats are downloaded later
            cached_file(name, file, local_files_only=here, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        if here:
            problem = f"there is no folder {name}, and the hub cannot be reached"
            raise UserError(f"{problem}: download the model when there is a connection", code="no-model") from error
        problem = f"model {name!r} is neither a folder nor a model of the hub ({first_line(error)})"
        raise UserError(problem, code="no-model") from error
    return Path(config).parent


def reachable() -> bool:
    """Whether the hub, or a proxy, accepts a connection; the time limit includes the name lookup."""
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(_connects()), daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return bool(answers) and answers[0]


@contextmanager
def offline(away: bool) -> Iterator[None]:
    """Context in which libraries use their cache only, instead of waiting a minute for a hub that is `away`."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or away
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _connects() -> bool:
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        address = urlsplit(os.environ[key]) if os.environ.get(key) else address
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        with socket.create_connection((address.hostname or "", port), PATIENCE):
            return True
    except (OSError, ValueError):
        return False
