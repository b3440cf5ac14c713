"""A guard around any adapter: it learns from what is worth it, and cannot stay ruined."""

from testdg.guards.guarded import Decision, Guard, guard

__all__ = ["Decision", "Guard", "guard"]
