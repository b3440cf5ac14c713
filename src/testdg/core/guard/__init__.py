"""A guard around any adapter: it learns only from useful images, and undoes steps that damage the model."""

from testdg.core.guard.decisions import Decision, OnDecision
from testdg.core.guard.guarded import Guard, guard

__all__ = ["Decision", "Guard", "OnDecision", "guard"]
