"""Models by their names on the hub: is it a name at all, is the hub there, and where do the files lie."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from testdg.errors import UserError
from testdg.models.untrusted import CONFIG, WEIGHTS, first_line

PATIENCE = 2.0
"""Seconds that the hub has for an answer; without it, nobody is asked again and again."""


def check_name(name: str) -> None:
    """Refuse what is a folder by its form, or by the folder that it would lie in, and does not exist."""
    path = Path(name).expanduser()
    parent = path.parent
    by_form = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/")
    if by_form or (parent != Path() and parent.is_dir()):
        raise UserError(f"folder {name} does not exist: name a folder with a model, or a model of the hub")


def fetch(name: str) -> Path:
    """Fetch the configuration, the preprocessor and the weights of a model; give the folder where they lie."""
    from transformers.utils import cached_file

    here = not reachable()
    try:
        config = cached_file(name, CONFIG, local_files_only=here)
        for file in ("preprocessor_config.json", WEIGHTS):  # weights in parts or in older forms are fetched later
            cached_file(name, file, local_files_only=here, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        if here:
            told = f"there is no folder {name} here, and the hub cannot be reached"
            raise UserError(f"{told}: name a folder, or fetch the model when there is a connection") from error
        reason = first_line(error)
        raise UserError(f"model {name!r} is neither a folder here nor a model that the hub gave ({reason})") from error
    return Path(config).parent


def reachable() -> bool:
    """Whether the hub, or the proxy before it, takes a connection; its name is looked up in the same time."""
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(_connects()), daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return bool(answers) and answers[0]


@contextmanager
def offline(away: bool) -> Iterator[None]:
    """While the hub is away, libraries look at what was fetched before, and do not ask for a minute."""
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
