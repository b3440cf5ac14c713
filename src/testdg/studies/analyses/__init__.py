"""Analyses: each computes numbers from runs; `testdg.report.analyses` draws them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from testdg.errors import UserError, look_up
from testdg.models import VisionModel
from testdg.spec import SOURCE, RunSpec
from testdg.studies.analyses.cost import compute_costs, compute_overview, compute_parameters
from testdg.studies.analyses.prototypes import compute_drift, compute_prototypes
from testdg.studies.analyses.spaces import (
    AMPLIFIER_VARIANTS,
    check_model,
    compute_attention,
    compute_embeddings,
    compute_gaps,
    compute_probes,
)
from testdg.studies.analyses.stream import compute_stream
from testdg.studies.analyses.subject import Numbers, Subject
from testdg.studies.grid import Grid

TESTDG = "testdg"


@dataclass(frozen=True)
class Analysis:
    """An analysis: what it computes, and from which runs."""

    name: str
    title: str
    compute: Callable[[Subject], Numbers]
    needs: Literal["runs", "state", "stream", "folders"]
    """Complete runs of all methods; the state at the end of a run; the stream once more; or run folders only."""
    looks_at: Literal["scores", "space", "prototypes"] = "scores"
    """Its object; only TestDG has prototypes and a space of embeddings."""
    several: bool = False
    """Whether it compares methods and seeds; otherwise it is about one run."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the runs that it compares, by name."""
    check_model: Callable[[VisionModel], None] | None = None
    """Refuses an unsuitable model before anything runs."""

    def grid(self, values: Mapping[str, Any]) -> Grid:
        """The grid of its runs; variants are TestDG's."""
        method = values.get("method", TESTDG)
        if self.variants and method not in (TESTDG, [TESTDG]):
            message = f"{self.name} compares variants of testdg only; got {method}: leave out --methods"
            raise UserError(message, code="not-analyzable")
        runs = tuple({"name": name, "settings": dict(settings)} for name, settings in self.variants.items())
        return Grid(values, runs, f"analysis {self.name}")

    def choose(self, specs: Sequence[RunSpec], space: str = "embeddings") -> list[RunSpec]:
        """The runs of its grid that it needs; an error if it is not for such runs."""
        if len({(spec.benchmark, spec.stream) for spec in specs}) > 1:
            message = f"{self.name} looks at one stream: name one benchmark, and a protocol with one order"
            raise UserError(message, code="several-runs")
        adapting = [spec for spec in specs if spec.method != SOURCE] or list(specs)
        if not self.several and len(adapting) > max(1, len(self.variants)):
            message = f"{self.name} looks at one run: name one method and one seed; got {len(adapting)}"
            raise UserError(message, code="several-runs")
        if self.looks_at == "prototypes" and specs[0].stream is not None and specs[0].stream.resets == "domain":
            message = f"{self.name} follows prototypes along the stream, and resets forget them: use resets=once"
            raise UserError(message, code="not-analyzable")
        if other := [spec.method for spec in adapting if spec.method != TESTDG]:
            if self.looks_at == "prototypes":
                message = f"{self.name} looks at domain prototypes, which {other[0]} does not have: use testdg"
                raise UserError(message, code="no-prototypes")
            if self.looks_at == "space" and space == "embeddings":
                message = f"{other[0]} has no domain embeddings: use --space features, or testdg"
                raise UserError(message, code="no-embeddings")
        return {"runs": list(specs), "state": adapting, "stream": [], "folders": []}[self.needs]


_ALL = [
    Analysis("stream", "error and detected changes over time", compute_stream, needs="runs", several=True),
    Analysis(
        "gap",
        "Chamfer distance between every two domains, before and after",
        compute_gaps,
        needs="state",
        looks_at="space",
    ),
    Analysis(
        "embeddings", "t-SNE of all domains, before and after", compute_embeddings, needs="state", looks_at="space"
    ),
    Analysis("probes", "class and domain accuracy of linear probes along the stream", compute_probes, needs="stream"),
    Analysis(
        "drift",
        "how well prototypes follow the model, with and without update",
        compute_drift,
        needs="stream",
        looks_at="prototypes",
    ),
    Analysis(
        "prototypes",
        "t-SNE of the queue with the chosen prototypes",
        compute_prototypes,
        needs="stream",
        looks_at="prototypes",
    ),
    Analysis("cost", "time and memory of a batch against error", compute_costs, needs="runs", several=True),
    Analysis("parameters", "learnable parameters against error", compute_parameters, needs="runs", several=True),
    Analysis("overview", "all benchmarks at a glance, from run folders", compute_overview, needs="folders"),
    Analysis(
        "attention",
        "attention maps with and without the amplifier (Hugging Face ViT)",
        compute_attention,
        needs="state",
        variants=AMPLIFIER_VARIANTS,
        check_model=check_model,
    ),
]
ANALYSES = {analysis.name: analysis for analysis in _ALL}


def find_analysis(name: str) -> Analysis:
    return look_up("analysis", name, ANALYSES)


__all__ = ["ANALYSES", "Analysis", "Numbers", "Subject", "find_analysis"]
