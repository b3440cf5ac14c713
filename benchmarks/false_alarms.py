"""TestDG with false alarms: some batches begin a new domain although nothing has changed.

A plugin: `testdg --plugin benchmarks/false_alarms.py bench benchmarks/grids/paper.toml`.
"""

from dataclasses import dataclass
from random import Random

from testdg.methods import find_method, option, register
from testdg.methods.testdg import TestDG, TestDGSettings
from testdg.methods.testdg.memory import ChangeDetector


@dataclass(frozen=True, kw_only=True)
class FalseAlarmSettings(TestDGSettings):
    """Settings of TestDG, and how many alarms are false."""

    false_alarms: float = option(0.05, "share of the batches that are taken for a new domain", low=0, high=1)


class AlarmedDetector(ChangeDetector):
    """A detector that also raises an alarm at random."""

    plain = (*ChangeDetector.plain, "batch")

    def __init__(self, threshold: float, share: float, seed: int) -> None:
        super().__init__(threshold)
        self.share, self.seed, self.batch = share, seed, 0

    def update(self, confidence: float) -> bool:
        """Add the mean confidence of a batch; True if it jumped, or by chance."""
        self.batch += 1
        alarm = Random(f"{self.seed} {self.batch}").random() < self.share
        return super().update(confidence) or alarm


@register
class TestDGFalseAlarms(TestDG):
    """TestDG whose detector raises false alarms."""

    name = "testdg_false_alarms"
    title = "TestDG with false alarms"
    example_error = None
    Settings = FalseAlarmSettings
    settings: FalseAlarmSettings
    presets = find_method("testdg").presets

    def make_detector(self) -> ChangeDetector:
        """Make a detector that raises false alarms."""
        s = self.settings
        return AlarmedDetector(s.threshold, s.false_alarms, s.seed)
