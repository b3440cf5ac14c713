"""What is to be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testdg.data.benchmarks.base import check_once, check_severity, fingerprint
from testdg.data.corruptions import EXTRA, SEVERITIES, STANDARD_ORDER, FrostTextures, ParameterSet
from testdg.data.corruptions.parameters import check_name
from testdg.errors import UserError

ALL = (*STANDARD_ORDER, *EXTRA)


@dataclass(frozen=True)
class CorruptOptions:
    """Which corruptions at which severities, and how they are made."""

    corruptions: Sequence[str] = ALL
    severities: Sequence[int] = SEVERITIES
    seed: int = 0
    jobs: int = 1

    def __post_init__(self) -> None:
        for name in self.corruptions:
            check_name(name)
        for severity in self.severities:
            check_severity(severity)
        check_once("corruptions", self.corruptions)
        check_once("severities", self.severities)
        if self.jobs < 1:
            raise UserError(f"jobs must be at least 1; got {self.jobs}")

    def describe(
        self, source: str, images: int, frost: FrostTextures | None, parameters: ParameterSet
    ) -> dict[str, Any]:
        """Everything that the images depend on, for the manifest; `source` identifies the clean ones."""
        return {
            "seed": self.seed,
            "frost": "procedural" if frost is None else f"{frost.description} ({fingerprint(frost.textures)})",
            "source_fingerprint": source,
            "images": images,
            "severities": sorted(self.severities),
            "corruptions": [],
            "parameters": parameters.name,
        }
