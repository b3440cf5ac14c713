"""Evaluation: the online loop, protocols and records, scores, run folders, source models."""

from testdg.evaluation.compare import check_comparable, comparable, differences
from testdg.evaluation.folder import read_result
from testdg.evaluation.observer import Observer
from testdg.evaluation.protocol import Protocol, read_protocol, read_protocols
from testdg.evaluation.record import Record
from testdg.evaluation.result import DomainResult, Result
from testdg.evaluation.run import run
from testdg.evaluation.source import source_model

__all__ = [
    "DomainResult",
    "Observer",
    "Protocol",
    "Record",
    "Result",
    "check_comparable",
    "comparable",
    "differences",
    "read_protocol",
    "read_protocols",
    "read_result",
    "run",
    "source_model",
]
