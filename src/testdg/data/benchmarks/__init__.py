"""Benchmarks: streams with everything that a number on them depends on."""

from testdg.data.benchmarks.base import Benchmark, Options, benchmarks, find_benchmark, load_benchmark, register

__all__ = ["Benchmark", "Options", "benchmarks", "find_benchmark", "load_benchmark", "register"]
