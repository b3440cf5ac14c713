"""A guard around any adapter: it learns from what is worth it, and cannot stay ruined."""

from testdg.guards.decisions import Decision
from testdg.guards.guarded import Guard, guard

__all__ = ["Decision", "Guard", "guard"]
