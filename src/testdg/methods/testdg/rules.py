"""Where the text of the paper and the code that its authors released part ways.

Everything else is common to both. Which of the two holds is one setting, `as_released`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from testdg.methods.testdg.update import DISTANCES, RELEASED_DISTANCES, Distance


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One of the two, point by point, in the order of the paper's sections."""

    predict: Literal["student", "teacher"]
    """Whose prediction is returned, and whose confidence the detector hears."""
    history: int
    """Past batches that a jump of the confidence is measured against."""
    late: bool
    """Whether a jump is acted on one batch later."""
    gamma: float | None
    """Width of the RBF kernel where the settings leave it open; none: median heuristic."""

    embed_from: Literal["features", "logits"]
    extractor_hidden: int | None
    """Width of the extractor's hidden layer; none: twice the classes."""
    extractor_activation: type[nn.Module]
    embedding_width: int
    discriminator_hidden: tuple[int, ...]
    discriminator_activation: type[nn.Module]

    amplifier_self_training: bool
    """Whether L_self is a part of step 1 too."""
    pause: int
    """Batches without L_inv at the start of every 50."""

    update_twice: bool
    """Whether prototypes follow after step 1 too, not only after step 2."""
    fresh: bool
    """Whether every update starts from random vectors, not from the prototypes."""
    distances: Mapping[str, Distance]

    restore: float
    """Share of the student's weights that go back to the source after a batch."""


TEXT = Rules(
    predict="student",
    history=1,
    late=False,
    gamma=None,
    embed_from="features",
    extractor_hidden=128,
    extractor_activation=nn.ReLU,
    embedding_width=16,
    discriminator_hidden=(16,),
    discriminator_activation=nn.GELU,
    amplifier_self_training=False,
    pause=0,
    update_twice=False,
    fresh=False,
    distances=DISTANCES,
    restore=0.0,
)
"""The text. It leaves open the widths, gamma and where an update starts: those are our choice."""

RELEASED = Rules(
    predict="teacher",
    history=2,
    late=True,
    gamma=1.0,
    embed_from="logits",
    extractor_hidden=None,
    extractor_activation=nn.GELU,
    embedding_width=4,
    discriminator_hidden=(16, 8),
    discriminator_activation=nn.ReLU,
    amplifier_self_training=True,
    pause=20,
    update_twice=True,
    fresh=True,
    distances=RELEASED_DISTANCES,
    restore=0.1,
)
"""The code for classification; none was released for segmentation."""
