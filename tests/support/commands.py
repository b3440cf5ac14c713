"""Expectations about commands that refuse their arguments."""

from collections.abc import Iterable
from typing import Any

import pytest

from testdg.cli.app import execute


def refuses(capsys: pytest.CaptureFixture[str], arguments: Iterable[object], *values: object) -> Any:
    """Run a command that must end with exit code 2 and one line on stderr that names the values; returns the output."""
    capsys.readouterr()
    assert execute([str(argument) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("testdg: ")
    assert shown.err.count("\n") == 1
    for value in values:
        assert str(value) in shown.err, f"{value!r} is not in: {shown.err}"
    return shown
