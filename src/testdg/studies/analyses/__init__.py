"""Analyses: each computes numbers from specs and their runs; `testdg.report.analyses` draws them."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from testdg.errors import UserError, look_up
from testdg.models import VisionModel
from testdg.spec import SOURCE, RunSpec
from testdg.studies.analyses.subject import Numbers, Subject
from testdg.studies.grid import Grid

TESTDG = "testdg"


@dataclass(frozen=True)
class Analysis:
    """An analysis by name; its module is imported when it is needed."""

    name: str
    title: str
    needs: Literal["runs", "state", "stream", "folders"]
    """Complete runs of all specs; the state that a method's run leaves; the stream once more; or run folders alone."""
    looks_at: Literal["scores", "space", "prototypes"] = "scores"
    """What it looks at, of any method; prototypes, and the space of embeddings, are TestDG's alone."""
    several: bool = False
    """Whether it compares methods and seeds; otherwise it looks at one run."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the runs that it compares, by name."""

    @property
    def compute(self) -> Callable[[Subject], Numbers]:
        """What makes the numbers."""
        return self._module.compute  # type: ignore[no-any-return]

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"testdg.studies.analyses.{self.name}")

    @property
    def check_model(self) -> Callable[[VisionModel], None] | None:
        """What refuses a model that it cannot look at, before anything runs."""
        return getattr(self._module, "check_model", None)

    def grid(self, values: Mapping[str, Any]) -> Grid:
        """The grid of its runs; variants are TestDG's."""
        asked = values.get("method", TESTDG)
        if self.variants and asked not in (TESTDG, [TESTDG]):
            message = f"{self.name} compares variants of testdg alone; got {asked}: leave out --methods"
            raise UserError(message, code="not-analyzable")
        runs = tuple({"name": name, "settings": dict(settings)} for name, settings in self.variants.items())
        return Grid(values, runs, f"analysis {self.name}")

    def choose(self, specs: Sequence[RunSpec], space: str = "embeddings") -> list[RunSpec]:
        """Of the specs of its grid, those that it needs to run; refuses what it cannot look at."""
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
    Analysis("stream", "error and detected changes over time", needs="runs", several=True),
    Analysis("gap", "Chamfer distance between every two domains, before and after", needs="state", looks_at="space"),
    Analysis("embeddings", "t-SNE of all domains, before and after", needs="state", looks_at="space"),
    Analysis("probes", "class and domain accuracy of linear probes along the stream", needs="stream"),
    Analysis(
        "drift", "how well prototypes follow the model, with and without update", needs="stream", looks_at="prototypes"
    ),
    Analysis("prototypes", "t-SNE of the queue with the chosen prototypes", needs="stream", looks_at="prototypes"),
    Analysis("cost", "time and memory of a batch against error", needs="runs", several=True),
    Analysis("parameters", "learnable parameters against error", needs="runs", several=True),
    Analysis("overview", "all benchmarks at a glance, from run folders", needs="folders"),
    Analysis(
        "attention",
        "attention maps with and without the amplifier (Hugging Face ViT)",
        needs="state",
        variants={"without amplifier": {"amplifier": False}, "with amplifier": {"amplifier": True}},
    ),
]
ANALYSES = {analysis.name: analysis for analysis in _ALL}


def find_analysis(name: str) -> Analysis:
    """An analysis by name."""
    return look_up("analysis", name, ANALYSES)


__all__ = ["ANALYSES", "Analysis", "Numbers", "Subject", "find_analysis"]
