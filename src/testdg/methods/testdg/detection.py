"""Domain change detection (section 3.1 of the paper)."""

from testdg.methods import PlainState


class ChangeDetector(PlainState):
    """Say that the domain changed when the mean confidence of a batch jumps.

    The text compares a batch with the one before it and acts at once. The released code compares it with the two
    before it, so that one jump is found in two batches, and acts on each of them one batch `late`.
    """

    plain = ("past", "due")

    def __init__(self, threshold: float, history: int = 1, late: bool = False) -> None:
        super().__init__()
        self.threshold, self.history, self.late = threshold, history, late
        self.past: list[float] = []
        self.due = False

    def update(self, confidence: float) -> bool:
        """Take the mean confidence of a batch; True where a new domain is to begin with it."""
        jumped = any(abs(confidence - value) > self.threshold for value in self.past)
        changed = self.due if self.late else jumped
        self.past = [*self.past, confidence][-self.history :]
        self.due = jumped
        return changed
