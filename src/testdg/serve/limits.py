"""Bounds of a server: whatever comes from outside has one; and how what is out of them is refused."""

from dataclasses import dataclass

from testdg.errors import UserError


class Refused(UserError):
    """A request that is not answered: why, and the status of HTTP that says so."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of everything there may be at most."""

    body: int = 16 << 20
    """Bytes of a request."""
    bodies: int = 256 << 20
    """Bytes of all requests that are being read or answered."""
    pixels: int = 1 << 24
    """Pixels of a picture that the model sees smaller than it is."""
    pass_pixels: int = 1 << 22
    """Pixels that pass the model at one time; and of a picture that it sees, or answers for, as large as it is."""
    scans: int = 64
    """Scans of a JPEG, each of which costs as much as the whole picture."""
    decoded: int = 1 << 30
    """Bytes of the decoded pictures of all requests."""
    pictures: int = 64
    """Pictures of one request."""
    requests: int = 256
    """Requests for predictions at one time; more are told to come again."""
    streams: int = 1000
    """Named streams, those on disk included."""
    resident: int = 8
    """Streams in memory; the least recently used ones wait on disk."""
    queue: int = 512
    """Pictures that wait to be learnt from; others are predicted and not learnt from."""
    queue_of_stream: int = 64
    """The part of the queue that one stream may take."""
    queue_bytes: int = 256 << 20
    """Memory of the pictures that wait to be learnt from."""
    json_parts: int = 2000
    """Values in the JSON of a request, which cost far more than their bytes."""
    seconds: float = 30.0
    """Time that a request may take, and that its body may take to arrive."""
    head_seconds: float = 10.0
    """Time that a connection may take to begin a request."""
    gather: float = 0.004
    """Seconds that a prediction waits for others to share a batch with, if others are on their way."""
    watchers: int = 32
    """Pages that are watching at one time."""
    save_every: float = 30.0
    """Seconds between two saved states of a stream that learns."""
    snapshots: int = 5
    """Snapshots and exports that are kept of a stream; the oldest makes room."""
