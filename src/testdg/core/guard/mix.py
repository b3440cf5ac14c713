"""The mix of classes: a model that sees one class only learns to predict that class only."""

import math
from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

WINDOW = 60
"""Predictions whose classes are counted."""
LEAST_SEEN = 20
"""Predictions without which nothing is known about the mix of classes."""
LEAST_SPREAD = 0.2
"""How far the classes of the window reach from one (0) to all, evenly (1), for it to be learnt from."""
SPREAD_AGAIN = 0.35
"""How far they must reach after they did not: where one class follows another, two at a time are not a mix."""
MIXED = 0.25
"""How far the classes that the source sees in a stream must reach for it to be a mix, whatever the model sees."""


@dataclass
class Mix:
    """The classes of the last predictions."""

    classes: int
    """Number of classes of the model; 1 for maps, whose mix is not looked at."""
    window: list[int] = field(default_factory=list)
    one_sided: bool = False
    """Result of the last `check`."""

    def add(self, logits: Tensor) -> None:
        """Count the predictions of a batch."""
        if self.classes > 1:
            self.add_classes(logits.argmax(1).tolist())

    def add_classes(self, classes: list[int]) -> None:
        """Count predicted classes."""
        self.window = [*self.window, *classes][-WINDOW:]

    @property
    def known(self) -> bool:
        """Whether there are enough predictions to judge."""
        return self.classes < 2 or len(self.window) >= LEAST_SEEN

    def check(self) -> bool:
        """Whether the last predictions are nearly all of one class; more is required after they were."""
        least = SPREAD_AGAIN if self.one_sided else LEAST_SPREAD
        self.one_sided = self.classes > 1 and spread(self.window, self.classes) < least
        return self.one_sided

    def __str__(self) -> str:
        return f"the last {len(self.window)} predictions are of {kinds(self.window):.1f} classes"


def kinds(found: list[int]) -> float:
    """How many classes predictions are of; a rare one counts less (exponential of the entropy)."""
    shares = [count / len(found) for count in Counter(found).values()]
    return math.exp(-sum(share * math.log(share) for share in shares))


def spread(found: list[int], classes: int) -> float:
    """How far predictions reach from one class (0) to all that there could be, evenly (1)."""
    return (kinds(found) - 1) / max(1, min(classes, len(found)) - 1)
