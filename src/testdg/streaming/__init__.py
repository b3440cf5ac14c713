"""A stream of a user's own pictures: decoded ahead of the model, predicted, adapted to, and written down."""

from testdg.streaming.pictures import Unreadable, read_picture
from testdg.streaming.predictor import Prediction, Predictor
from testdg.streaming.setup import class_names
from testdg.streaming.stream import AdaptedStream, Skipped, adapt_stream

__all__ = [
    "AdaptedStream",
    "Prediction",
    "Predictor",
    "Skipped",
    "Unreadable",
    "adapt_stream",
    "class_names",
    "read_picture",
]
