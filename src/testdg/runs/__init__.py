"""Runs: a protocol makes a stream, a session predicts and learns, a folder stores the results; source models."""

from testdg.data.pictures import Unreadable, read_picture
from testdg.runs.compare import check_comparable, comparable, differences
from testdg.runs.folder import read_result
from testdg.runs.observer import Observer
from testdg.runs.pictures import AdaptedStream, adapt_stream
from testdg.runs.predictions import Prediction
from testdg.runs.protocol import Protocol, read_protocol, read_protocols
from testdg.runs.result import DomainResult, Result
from testdg.runs.run import run
from testdg.runs.session import Session, class_names, open_pictures, open_run
from testdg.runs.source import source_model
from testdg.spec import RunSpec

__all__ = [
    "AdaptedStream",
    "DomainResult",
    "Observer",
    "Prediction",
    "Protocol",
    "Result",
    "RunSpec",
    "Session",
    "Unreadable",
    "adapt_stream",
    "check_comparable",
    "class_names",
    "comparable",
    "differences",
    "open_pictures",
    "open_run",
    "read_picture",
    "read_protocol",
    "read_protocols",
    "read_result",
    "run",
    "source_model",
]
