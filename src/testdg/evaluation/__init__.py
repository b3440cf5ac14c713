"""Evaluation: the online loop, protocols, scores, run folders, source models."""

from testdg.evaluation.compare import check_comparable, comparable, differences
from testdg.evaluation.folder import read_result
from testdg.evaluation.observer import Observer
from testdg.evaluation.plan import Plan
from testdg.evaluation.plans import read_plan, read_plans
from testdg.evaluation.protocol import Protocol
from testdg.evaluation.result import DomainResult, Result
from testdg.evaluation.run import run
from testdg.evaluation.source_model import source_model

__all__ = [
    "DomainResult",
    "Observer",
    "Plan",
    "Protocol",
    "Result",
    "check_comparable",
    "comparable",
    "differences",
    "read_plan",
    "read_plans",
    "read_result",
    "run",
    "source_model",
]
