"""A guard around any adapter: it learns from what is worth it, and cannot stay ruined."""

from testdg.core.guard.around import guard
from testdg.core.guard.guarded import Guard
from testdg.core.guard.state import Decision, OnDecision

__all__ = ["Decision", "Guard", "OnDecision", "guard"]
