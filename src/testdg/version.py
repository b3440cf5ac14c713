"""The version, which numbers and files are marked with."""

__version__ = "0.1.0"
