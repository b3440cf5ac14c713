"""`guard`: put a guard around an adapter."""

from torch import Tensor

from testdg.core.adapter import Adapter
from testdg.core.guard.guarded import Guard
from testdg.core.guard.state import OnDecision
from testdg.errors import UserError


def guard(
    adapter: Adapter,
    probe: Tensor | None = None,
    *,
    patience: int = 3,
    snapshots: int = 2,
    on_decision: OnDecision = None,
) -> Guard:
    """Put a guard around an adapter, to be used in its place.

    Args:
        adapter: What `adapt` gives.
        probe: Clean images in [0, 1] of the kind that the model was trained on, without labels, 100 at most (4 street
            scenes): the model must go on predicting them as it did at first. Left out, they are the first that
            `warm_up` shows, or the first sure ones of the stream.
        patience: After so many unhealthy looks without as many healthy ones between, the source predicts, and
            nothing is learnt for a while.
        snapshots: Healthy states that are kept in memory.
        on_decision: Is told everything that the guard does; `counts` and `decisions` have it, too.
    """
    for name, value in (("patience", patience), ("snapshots", snapshots)):
        if value < 1:
            raise UserError(f"{name} of a guard must be 1 or more; got {value}")
    return Guard(adapter, None if probe is None else adapter.checked(probe), patience, snapshots, on_decision)
