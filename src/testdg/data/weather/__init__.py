"""Fog, night, rain and snow as transforms of pictures, batched, keyed by the place of a picture in its data set."""

from testdg.data.weather.apply import CONDITIONS, check_condition, weather
from testdg.data.weather.geometry import Geometry, guess_geometry

__all__ = ["CONDITIONS", "Geometry", "check_condition", "guess_geometry", "weather"]
