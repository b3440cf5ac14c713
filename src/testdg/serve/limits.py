"""Limits of a server, and the error for requests that exceed them."""

from dataclasses import dataclass

from testdg.errors import UserError


class Refused(UserError):
    """A request that the server refuses, with the HTTP status of the answer."""

    def __init__(self, message: str, code: str, status: int = 400) -> None:
        super().__init__(message, code)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Maximum values for everything that comes from outside."""

    body: int = 16 << 20
    """Bytes of a request for predictions."""
    control_body: int = 64 << 10
    """Bytes of any other request."""
    bodies: int = 256 << 20
    """Bytes of all requests in progress."""
    pixels: int = 1 << 24
    """Pixels of a picture that the model resizes."""
    pass_pixels: int = 1 << 22
    """Pixels of one pass of the model, and of a picture that is not resized or has a segmentation map."""
    scans: int = 64
    """Scans of a JPEG. Decoding one scan costs as much as the whole picture."""
    scanned: int = 1 << 28
    """Pixels times scans of a JPEG."""
    large: int = 1 << 21
    """Pixels (times scans) of a request above which separate threads of low priority decode it."""
    large_requests: int = 16
    """Requests in progress that are larger than that; others are refused with 503."""
    decoded: int = 1 << 30
    """Bytes of the decoded pictures of all requests."""
    pictures: int = 64
    """Pictures of a request."""
    requests: int = 256
    """Requests for predictions in progress; others are refused with 503."""
    streams: int = 1000
    """Streams, including those on disk."""
    resident: int = 8
    """Streams in memory. The least recently used ones are moved to disk."""
    queue: int = 512
    """Pictures that wait for learning. Others are predicted and not learnt from."""
    queue_of_stream: int = 64
    """Pictures of one stream that wait for learning."""
    queue_bytes: int = 256 << 20
    """Bytes of the pictures that wait for learning."""
    json_parts: int = 2000
    """Values in the JSON of a request: parsed values cost far more memory than their text."""
    seconds: float = 30.0
    """Duration of a request, and of receiving its body."""
    head_seconds: float = 10.0
    """Duration until a connection has sent the head of a request."""
    gather: float = 0.004
    """Seconds that a prediction waits for others to share a batch with, if others are in flight."""
    watchers: int = 32
    """Pages that receive events."""
    save_every: float = 30.0
    """Seconds between two saved states of a stream that learns."""
    snapshots: int = 5
    """Snapshots and exports of a stream. The oldest ones are deleted."""
