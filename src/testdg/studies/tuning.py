"""Tuning: every method tries the same number of configurations on the same streams; one rule chooses the best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import msgspec

from testdg.core.settings import BUDGET, RATE, Side, is_ordered, next_value
from testdg.data.benchmarks import Benchmark
from testdg.data.benchmarks.corruption import CorruptionBenchmark
from testdg.data.corruptions import EXTRA
from testdg.errors import UserError
from testdg.runs import Observer
from testdg.runs.result import mean_of
from testdg.runs.scores import Metric
from testdg.runs.session import open_run
from testdg.schema import plain
from testdg.spec import SOURCE, RunSpec
from testdg.studies.engine import Complete, Failed
from testdg.studies.grid import Grid, expand
from testdg.studies.variants import TunedRow, Variant

IMAGES = 4000
TIED = 0.005  # scores closer than this many points are shown as equal
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Configuration:
    """One combination of settings of a variant that the search tries, and its score."""

    variant: Variant
    preset: str
    settings: Values
    published: bool
    widened: int = 0
    """Number of the widening that added this configuration; 0 for the first search."""
    score: float | None = None
    """The mean over all its runs; None if one failed or has no score."""
    seconds: float = 0.0

    @property
    def described(self) -> str:
        texts = {
            key: f"{value:g}" if isinstance(value, float) else plain(value) for key, value in self.settings.items()
        }
        return ", ".join(f"{key}={text}" for key, text in texts.items())

    @cached_property
    def name(self) -> str:
        """The name of its runs."""
        return f"{self.variant.title}: {self.described}"


def configurations(variant: Variant, preset: str, rates: Sequence[float] = ()) -> list[Configuration]:
    """The configurations of a variant, close to the settings of a preset ("none" for the defaults).

    If there are `rates`, they replace the method's own search, together with the published rate.
    """
    published = variant.published(None if preset == "none" else preset)
    tried = variant.method_class.search.configurations(published)
    if rates and RATE in published:
        tried = [{RATE: rate} for rate in sorted({*rates, published[RATE]})]
    elif len(tried) != BUDGET:
        message = f"{variant.key} has {len(tried)} configurations to try, not {BUDGET}: declare its `search`"
        raise UserError(message, code="wrong-search")
    return [
        Configuration(variant, preset, settings, all(published[key] == value for key, value in settings.items()))
        for settings in tried
    ]


def usual_values(benchmark: Benchmark, values: Values) -> dict[str, Any]:
    """The values, with defaults for the streams: the extra corruptions, at full length."""
    if "domains" not in values and not isinstance(benchmark, CorruptionBenchmark):
        message = f"{benchmark.name} has no extra corruptions: name the domains for the choice with --domains"
        raise UserError(message, code="no-domains")
    return {"domains": EXTRA, "images": IMAGES, **values}


def chosen_preset(variant: Variant, benchmark: str, values: Values) -> str:
    """The preset of the user, or the one for the benchmark; "none" if there is none."""
    preset = values.get("preset", benchmark)
    return preset if preset in variant.method_class.presets or "preset" in values else "none"


def tuning_runs(tried: Sequence[Configuration], values: Values, settings: Mapping[str, Values]) -> list[RunSpec]:
    """The runs of every configuration on the domains in both orders: first Source, then one method after the other.

    With this order, an interrupted tuning is complete for some methods, instead of incomplete for all. The `settings`
    of a method apply to all its configurations.
    """
    for one in tried:
        own = {**one.settings, **one.variant.fixed}
        if taken := [key for key in settings.get(one.variant.method, {}) if key in own]:
            message = f"tune chooses {taken[0]} of {one.variant.key}: leave it out of --set"
            raise UserError(message, code="setting-varied")
    domains, runs = list(values["domains"]), []
    for one in tried:
        table = {"name": one.name, "method": one.variant.method, "preset": one.preset}
        table["settings"] = plain({**one.variant.fixed, **one.settings})
        runs.append({**table, "domains": domains})
        if domains != domains[::-1]:
            runs.append({**table, "domains": domains[::-1]})
    shared = {key: value for key, value in values.items() if key not in ("domains", "preset")}
    specs = expand(Grid({**shared, "settings": settings}, tuple(runs), "tune"))
    order = list(dict.fromkeys(one.variant.key for one in tried))
    places = {one.name: order.index(one.variant.key) for one in tried}
    return sorted(specs, key=lambda spec: places.get(spec.name, -1))


def conditions(rule: str, specs: Sequence[RunSpec], observer: Observer | None = None) -> dict[str, Any]:
    """Everything that a choice depends on, except for the device, from the record of the first run (of Source).

    This loads the source model. The model of an embedded benchmark is trained now if necessary.
    """
    source = specs[0]
    record = open_run(msgspec.structs.replace(source, device="cpu"), observer).record
    data = {key: record[key] for key in ("benchmark", "domains", "severity", "images_per_domain", "batch_size")}
    seeds = sorted({spec.seed for spec in specs if spec.method != SOURCE})
    of_model = {key: record[key] for key in ("model", "model_fingerprint", "precision")}
    return {"rule": rule, **data, "orders": "both", "protocol": source.protocol, **of_model, "seeds": seeds}


@dataclass(frozen=True)
class VariantChoice:
    """All configurations of a variant with their scores; at least one score is not None."""

    variant: Variant
    metric: Metric
    source: float | None
    tried: Sequence[Configuration]
    given: Values = field(default_factory=dict)
    """Settings that the user gave to all configurations."""

    @property
    def best(self) -> Configuration:
        """The best configuration. Ties are broken by: the published one, the smallest learning rate, the first."""
        return min(self.ties, key=lambda one: (not one.published, one.settings.get(RATE, 0)))

    @property
    def ties(self) -> list[Configuration]:
        """The best configuration, and all whose score is shown as equal to it."""
        least = min(self._loss(one) for one in self.scored)
        return [one for one in self.scored if self._loss(one) - least < TIED]

    @property
    def scored(self) -> list[Configuration]:
        return [one for one in self.tried if one.score is not None]

    @property
    def published(self) -> Configuration:
        return next(one for one in self.tried if one.published)

    def gap_to_best(self, one: Configuration) -> float | None:
        """How much worse a score is than the best."""
        return None if one.score is None else self._loss(one) - self._loss(self.best)

    def neighbours(self) -> list[Configuration]:
        """Configurations that differ from the best in one setting, by one place if its values are ordered."""
        return [one for one in self.tried if self._steps(one) == 1]

    def edges(self) -> dict[str, Side]:
        """Settings whose best value is the smallest or the largest of the search, and on which side."""
        edges: dict[str, Side] = {}
        for key, values in self._axes().items():
            value = self.best.settings[key]
            if is_ordered(values) and value in (min(values), max(values)):
                edges[key] = "least" if value == min(values) else "largest"
        return edges

    @property
    def widened(self) -> int:
        return max(one.widened for one in self.tried)

    def wider(self) -> list[Configuration]:
        """The configurations that a wider search adds.

        Each setting at an edge gets one more value beyond it, combined with all values of the other settings. Empty if
        no setting is at an edge, or if the settings at an edge cannot go beyond their bounds.
        """
        axes, kind = self._axes(), self.variant.method_class.Settings
        for key, side in self.edges().items():
            if (value := next_value(kind, key, axes[key], side)) is not None:
                axes[key] = (value, *axes[key]) if side == "least" else (*axes[key], value)
        known = [one.settings for one in self.tried]
        found = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        added = replace(self.best, published=False, widened=self.widened + 1, score=None, seconds=0.0)
        return [replace(added, settings=settings) for settings in found if settings not in known]

    def chosen(self) -> TunedRow:
        """The row for the file of chosen settings."""
        return TunedRow(
            name=self.variant.title,
            method=self.variant.method,
            preset=self.best.preset,
            settings={**self.given, **self.best.settings},
            fixed=dict(self.variant.fixed),
            score=self.best.score,
            published=self.published.score,
            edges=tuple(self.edges()),
            widened=self.widened,
        )

    def _loss(self, one: Configuration) -> float:
        assert one.score is not None
        return -one.score if self.metric.higher else one.score

    def _axes(self) -> dict[str, tuple[Any, ...]]:
        """All values of each setting in the search; numbers are sorted."""
        axes = {}
        for key in self.tried[0].settings:
            values = tuple(dict.fromkeys(one.settings[key] for one in self.tried))
            axes[key] = tuple(sorted(values)) if is_ordered(values) else values
        return axes

    def _steps(self, other: Configuration) -> int:
        """Distance to the best configuration: places in an ordered setting, 1 for any other difference."""
        best, steps = self.best.settings, 0
        for key, values in self._axes().items():
            here, there = values.index(best[key]), values.index(other.settings[key])
            steps += abs(here - there) if is_ordered(values) else here != there
        return steps


def choose(
    tried: Sequence[Configuration], specs: Sequence[RunSpec], ends: Sequence[Complete | Failed]
) -> tuple[list[VariantChoice], list[Variant]]:
    """The choice of each variant whose runs have all ended, at least one with a score; then the remaining variants."""
    ended = {end.number for end in ends}
    complete = {end.number: end.result for end in ends if isinstance(end, Complete)}
    source = mean_of([result.mean_score for n, result in complete.items() if specs[n].method == SOURCE])
    choices, waiting = [], []
    for variant in {one.variant.key: one.variant for one in tried}.values():
        mine = {one.name: one for one in tried if one.variant.key == variant.key}
        numbers: dict[str, list[int]] = {name: [] for name in mine}
        for number, spec in enumerate(specs):
            if spec.name in mine:
                numbers[spec.name].append(number)
        every = [number for several in numbers.values() for number in several]
        scored = []
        for name, one in mine.items():
            results = [complete.get(number) for number in numbers[name]]
            score = mean_of([None if result is None else result.mean_score for result in results])
            seconds = sum(result.seconds for result in results if result is not None)
            scored.append(replace(one, score=score, seconds=seconds))
        if not ended.issuperset(every) or all(one.score is None for one in scored):
            waiting.append(variant)
            continue
        metric = next(complete[number] for number in every if number in complete).metric
        own = {*scored[0].settings, *variant.fixed}
        given = {key: value for key, value in specs[every[0]].settings.items() if key not in own}
        choices.append(VariantChoice(variant, metric, source, scored, given))
    return choices, waiting
