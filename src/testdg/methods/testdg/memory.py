"""What TestDG remembers: embeddings of the current domain, and prototypes of previous domains.

Both live in tensors of fixed size that are changed in place; how much of them is filled is counted on the host.
"""

import torch
from torch import Generator, Tensor, nn

from testdg.methods import PlainState


class Queue(PlainState):
    """The last embeddings of the current domain (or a uniform sample of them), each with its position in the stream."""

    plain = ("seen",)

    def __init__(self, length: int, width: int, device: torch.device, reservoir: bool = False) -> None:
        super().__init__()
        self.length, self.reservoir = length, reservoir
        self.seen = 0
        rows = length + 1  # the last row takes what a reservoir turns away
        self.embeddings: Tensor = nn.Buffer(torch.zeros(rows, width, device=device))
        self.positions: Tensor = nn.Buffer(torch.full((rows,), -1, dtype=torch.int64, device=device))
        self.cursor: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=device))
        self.position: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=device))

    def __len__(self) -> int:
        """Number of embeddings held."""
        return min(self.seen, self.length)

    def push(self, embeddings: Tensor, images: int, generator: Generator) -> None:
        """Write the embeddings of some images; when full, the oldest leave (or, in a reservoir, random ones).

        Runs on the device alone; `count` is its other half.
        """
        count = len(embeddings)
        place = torch.arange(count, device=embeddings.device)
        positions = self.position + place // (count // images)
        order = self.cursor + place
        if self.reservoir:
            draw = (torch.rand(count, generator=generator, device=order.device) * (order + 1)).long()
            slots = torch.where(order < self.length, order, draw.clamp(max=self.length))
            last = torch.full_like(self.positions, -1).scatter_reduce(0, slots, place, "amax")
            slots = torch.where(last[slots] == place, slots, self.length)  # of several in a slot the last one stays
        else:
            slots = (order % self.length)[-self.length :]
        kept = slice(-len(slots), None)
        self.embeddings[slots] = embeddings[kept].to(self.embeddings.dtype)
        self.positions[slots] = positions[kept]
        self.embeddings[self.length :].zero_()
        self.positions[self.length :].fill_(-1)
        self.cursor += count
        self.position += images

    def count(self, embeddings: int) -> None:
        """Count embeddings that are pushed."""
        self.seen += embeddings

    def content(self) -> tuple[Tensor, Tensor]:
        """Embeddings and positions, oldest first."""
        held = slice(0, len(self))
        start = 0 if self.seen <= self.length or self.reservoir else -(self.seen % self.length)
        return self.embeddings[held].roll(start, 0), self.positions[held].roll(start, 0)

    def clear(self) -> None:
        """Forget everything but the position in the stream."""
        self.seen = 0
        self.cursor.zero_()
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
        """Number of prototypes held."""
        return sum(self.counts)

    @property
    def current(self) -> Tensor:
        """The prototypes that there are."""
        return self.embeddings[: len(self)]

    def add(self, embeddings: Tensor, positions: Tensor) -> None:
        """Add the prototypes of a domain; those of the oldest domain leave."""
        before = len(self)
        self.counts = [*self.counts, len(embeddings)][-self.domains :]
        kept = len(self)
        self.embeddings[:kept] = torch.cat([self.embeddings[:before], embeddings])[-kept:]
        self.positions[:kept] = torch.cat([self.positions[:before], positions])[-kept:]

    def move(self, embeddings: Tensor) -> None:
        """Put the prototypes somewhere else."""
        self.current.copy_(embeddings)
