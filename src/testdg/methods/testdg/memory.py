"""What TestDG remembers of a stream: the last confidence, embeddings of the domain, and prototypes of earlier ones.

Embeddings and prototypes live in tensors of fixed size that are changed in place; how many of their rows are used is
counted on the host.
"""

from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from testdg.methods import PlainState


class ChangeDetector(PlainState):
    """Section 3.1: detect a new domain by a jump of the mean confidence between two consecutive batches."""

    plain: ClassVar[tuple[str, ...]] = ("past",)

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.past: list[float] = []

    def update(self, confidence: float) -> bool:
        """Add the mean confidence of a batch; True if a new domain begins with this batch."""
        jumped = any(abs(confidence - value) > self.threshold for value in self.past)
        self.past = [confidence]
        return jumped


class Queue(PlainState):
    """The last embeddings of the current domain (or a uniform sample of them), each with its position in the stream."""

    plain = ("seen", "position")

    def __init__(self, length: int, width: int, device: torch.device, reservoir: bool = False) -> None:
        super().__init__()
        self.length, self.reservoir = length, reservoir
        self.seen = 0  # embeddings of the current domain
        self.position = 0  # images of the whole stream
        rows = length + 1  # the last row takes what a reservoir rejects
        self.embeddings: Tensor = nn.Buffer(torch.zeros(rows, width, device=device))
        self.positions: Tensor = nn.Buffer(torch.full((rows,), -1, dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return min(self.seen, self.length)

    def push(self, embeddings: Tensor, images: int, generator: Generator) -> None:
        """Add the embeddings of some images; a full queue drops the oldest ones, a reservoir random ones."""
        count = len(embeddings)
        place = torch.arange(count, device=embeddings.device)
        positions = self.position + place // (count // images)
        order = self.seen + place
        if self.reservoir:
            draw = (torch.rand(count, generator=generator, device=order.device) * (order + 1)).long()
            slots = torch.where(order < self.length, order, draw.clamp(max=self.length))
            last = torch.full_like(self.positions, -1).scatter_reduce(0, slots, place, "amax")
            slots = torch.where(last[slots] == place, slots, self.length)  # of several in a slot the last one stays
        else:
            slots = (order % self.length)[-self.length :]
        newest = slice(-len(slots), None)
        self.embeddings[slots] = embeddings[newest].to(self.embeddings.dtype)
        self.positions[slots] = positions[newest]
        self.embeddings[self.length :].zero_()
        self.positions[self.length :].fill_(-1)
        self.seen += count
        self.position += images

    def content(self) -> tuple[Tensor, Tensor]:
        """Embeddings and positions, oldest first."""
        used = slice(0, len(self))
        start = 0 if self.seen <= self.length or self.reservoir else -(self.seen % self.length)
        return self.embeddings[used].roll(start, 0), self.positions[used].roll(start, 0)

    def clear(self) -> None:
        """Remove all embeddings; the position in the stream stays."""
        self.seen = 0
        self.positions.fill_(-1)
        self.embeddings.zero_()


class Prototypes(PlainState):
    """Prototypes of the last domains, newest domain last, each with the stream position of its image."""

    plain = ("counts",)

    def __init__(self, width: int, each: int, domains: int, device: torch.device) -> None:
        super().__init__()
        self.domains = domains
        self.counts: list[int] = []
        self.embeddings: Tensor = nn.Buffer(torch.zeros(each * domains, width, device=device))
        self.positions: Tensor = nn.Buffer(torch.full((each * domains,), -1, dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def current(self) -> Tensor:
        return self.embeddings[: len(self)]

    def add(self, embeddings: Tensor, positions: Tensor) -> None:
        """Add the prototypes of a domain and drop those of the oldest one."""
        before = len(self)
        self.counts = [*self.counts, len(embeddings)][-self.domains :]
        after = len(self)
        self.embeddings[:after] = torch.cat([self.embeddings[:before], embeddings])[-after:]
        self.positions[:after] = torch.cat([self.positions[:before], positions])[-after:]

    def move(self, embeddings: Tensor) -> None:
        self.current.copy_(embeddings)
