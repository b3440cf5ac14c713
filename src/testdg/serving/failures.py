"""What a server refuses, each with the status that says so."""

from __future__ import annotations

from testdg.errors import UserError


class Refused(UserError):
    """A request that is not answered, and why."""

    status = 400


class TooMany(Refused):
    """There is no room now: come again."""

    status = 503


class NoRoom(Refused):
    """The disk is full, and the memory has no room for another stream."""

    status = 507


class Conflict(Refused):
    """What is asked for is not possible in this state."""

    status = 409


class NotFound(Refused):
    """There is no such thing."""

    status = 404
