"""Fog, night, rain and snow as transforms of pictures, batched, keyed by the place of a picture in its data set."""

from testdg.data.weather.apply import CONDITIONS, weather
from testdg.data.weather.geometry import Geometry, guess_geometry
from testdg.data.weather.images import WeatherImages

__all__ = ["CONDITIONS", "Geometry", "WeatherImages", "guess_geometry", "weather"]
