"""Domain change detection (section 3.1 of the paper)."""

from typing import ClassVar

from testdg.methods import PlainState


class ChangeDetector(PlainState):
    """Detect a new domain by a jump of the mean confidence between two consecutive batches."""

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
