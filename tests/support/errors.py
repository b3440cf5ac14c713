"""Expectations about mistakes of the user: the stable code and the values, never the wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testdg.errors import UserError


@contextmanager
def refused(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError with this code whose message names the values."""
    with pytest.raises(UserError) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"
    message = str(caught.value)
    for value in values:
        assert str(value) in message, f"{value!r} is not in: {message}"
