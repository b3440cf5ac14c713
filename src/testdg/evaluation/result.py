"""Result: errors per domain, with the protocol that they belong to."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import testdg


@dataclass(frozen=True)
class DomainResult:
    """The error on one domain, in percent."""

    name: str
    error: float
    images: int

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DomainResult:
        """Read what `asdict` gave."""
        return cls(str(values["name"]), float(values["error"]), int(values["images"]))


@dataclass(frozen=True)
class Result:
    """What a run found."""

    protocol: dict[str, Any]
    method: dict[str, Any]
    domains: list[DomainResult]
    held_out: list[DomainResult] | None
    seconds: float
    versions: dict[str, str]
    folder: Path = field(compare=False)

    @property
    def mean_error(self) -> float:
        """Unweighted mean over the domains that were adapted to."""
        return mean(self.domains)

    @property
    def held_out_mean(self) -> float | None:
        """Unweighted mean over the held-out domains."""
        return None if self.held_out is None else mean(self.held_out)

    def to_dict(self) -> dict[str, Any]:
        """Give the values as plain JSON."""
        return {
            "protocol": self.protocol,
            "method": self.method,
            "domains": [asdict(domain) for domain in self.domains],
            "mean_error": self.mean_error,
            "held_out": None if self.held_out is None else [asdict(domain) for domain in self.held_out],
            "held_out_mean": self.held_out_mean,
            "seconds": self.seconds,
            "versions": self.versions,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], folder: Path) -> Result:
        """Read what `to_dict` gave."""
        held_out = values["held_out"]
        return cls(
            protocol=values["protocol"],
            method=values["method"],
            domains=[DomainResult.from_dict(domain) for domain in values["domains"]],
            held_out=None if held_out is None else [DomainResult.from_dict(domain) for domain in held_out],
            seconds=float(values["seconds"]),
            versions=values["versions"],
            folder=folder,
        )


def mean(domains: list[DomainResult]) -> float:
    """Unweighted mean error."""
    return sum(domain.error for domain in domains) / len(domains)


def summarise(events: list[dict[str, Any]], phase: str) -> list[DomainResult]:
    """Add up the batches of each domain, in the order of the stream."""
    counts: dict[str, list[int]] = {}
    for event in events:
        if event["phase"] == phase:
            count = counts.setdefault(event["domain"], [0, 0])
            count[0] += event["errors"]
            count[1] += event["images"]
    return [DomainResult(name, 100 * errors / images, images) for name, (errors, images) in counts.items()]


def versions() -> dict[str, str]:
    """Versions of what computed a result."""
    import torch

    return {"testdg": testdg.__version__, "torch": torch.__version__, "python": platform.python_version()}
