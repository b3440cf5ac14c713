"""A guard around any adapter: it learns from what is worth it, and cannot stay ruined."""

from testdg.guards.around import guard
from testdg.guards.guarded import Guard
from testdg.guards.state import Decision

__all__ = ["Decision", "Guard", "guard"]
