"""Evaluation: the online loop, protocols, run folders, source models."""

from testdg.evaluation.observer import Observer
from testdg.evaluation.protocol import Protocol
from testdg.evaluation.result import DomainResult, Result
from testdg.evaluation.run import run
from testdg.evaluation.source_model import source_model

__all__ = ["DomainResult", "Observer", "Protocol", "Result", "run", "source_model"]
