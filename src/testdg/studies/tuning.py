"""Tuning: for every method the same number of configurations, on the same streams, chosen by the same rule."""

from collections.abc import Iterable, Mapping, Sequence
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
from testdg.runs import Observer, Result
from testdg.runs.result import mean_of
from testdg.runs.scores import Metric
from testdg.runs.session import open_run
from testdg.spec import SOURCE, RunSpec
from testdg.studies.engine import Complete, Failed
from testdg.studies.grid import Grid
from testdg.studies.variants import Chosen, Variant

IMAGES = 4000
TIED = 0.005  # points by which two scores may differ that are shown as equal
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Configuration:
    """Settings of a variant that the search tries."""

    variant: Variant
    preset: str
    settings: Values
    published: bool
    widened: int = 0
    """The widening of the search that added it; 0 for the first search."""

    @property
    def described(self) -> str:
        return ", ".join(f"{key}={_text(value)}" for key, value in self.settings.items())

    @cached_property
    def name(self) -> str:
        """The name of its runs."""
        return f"{self.variant.title}: {self.described}"

    def run(self, domains: Sequence[str]) -> dict[str, Any]:
        """Its table in a grid, on some domains in order."""
        settings = {**self.variant.fixed, **self.settings}
        about = {"name": self.name, "method": self.variant.method, "preset": self.preset}
        return {**about, "settings": {k: "none" if v is None else v for k, v in settings.items()}, "domains": domains}


def configurations(variant: Variant, preset: str, rates: Sequence[float] = ()) -> list[Configuration]:
    """The configurations of a variant, around the settings of a preset ("none" for the defaults).

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
    """The values with the default streams that settings are chosen on: extra corruptions, at full length."""
    if "domains" not in values and not isinstance(benchmark, CorruptionBenchmark):
        message = f"{benchmark.name} has no extra corruptions: name the domains to choose settings on with --domains"
        raise UserError(message, code="no-domains")
    return {"domains": EXTRA, "images": IMAGES, **values}


def chosen_preset(variant: Variant, benchmark: str, values: Values) -> str:
    """The preset of the user, or the one for the benchmark; "none" if there is none."""
    preset = values.get("preset", benchmark)
    return preset if preset in variant.method_class.presets or "preset" in values else "none"


def tuning_grid(tried: Iterable[Configuration], values: Values, settings: Values) -> Grid:
    """Every configuration on the domains in both orders; `settings` of a method apply to all its configurations."""
    ways = list(dict.fromkeys([tuple(values["domains"]), tuple(values["domains"][::-1])]))
    runs = tuple(one.run(list(way)) for one in tried for way in ways)
    shared = {key: value for key, value in values.items() if key not in ("domains", "preset")}
    return Grid({**shared, "settings": settings}, runs, "tune")


def check_given(tried: Iterable[Configuration], settings: Mapping[str, Values]) -> None:
    """Refuse settings of the user that the search or a variant sets."""
    for one in tried:
        if own := [key for key in settings.get(one.variant.method, {}) if key in {**one.settings, **one.variant.fixed}]:
            message = f"tune chooses {own[0]} of {one.variant.key}: leave it out of --set"
            raise UserError(message, code="setting-varied")


def order_by_method(specs: Sequence[RunSpec], tried: Sequence[Configuration]) -> list[RunSpec]:
    """Runs method by method, Source first, so that an interrupted tuning is complete for some methods."""
    order = list(dict.fromkeys(one.variant.key for one in tried))
    places = {one.name: order.index(one.variant.key) for one in tried}
    return sorted(specs, key=lambda spec: places.get(spec.name, -1))


def conditions(rule: str, specs: Sequence[RunSpec], observer: Observer | None = None) -> dict[str, Any]:
    """What a choice depends on, apart from the device, as the first run, which is of Source, will record it.

    This loads the source model, which is trained first if the benchmark is embedded.
    """
    source = specs[0]
    record = open_run(msgspec.structs.replace(source, device="cpu"), observer).record
    data = {key: record[key] for key in ("benchmark", "domains", "severity", "images_per_domain", "batch_size")}
    seeds = sorted({spec.seed for spec in specs if spec.method != SOURCE})
    of_model = {key: record[key] for key in ("model", "model_fingerprint", "precision")}
    return {"rule": rule, **data, "orders": "both", "protocol": source.protocol, **of_model, "seeds": seeds}


@dataclass(frozen=True)
class Tried:
    """A configuration and its mean score over all its runs; None if one failed or has no score."""

    configuration: Configuration
    score: float | None
    seconds: float = 0.0


@dataclass(frozen=True)
class Choice:
    """All configurations of a variant with their scores, of which at least one is not None."""

    variant: Variant
    metric: Metric
    source: float | None
    tried: Sequence[Tried]
    given: Values = field(default_factory=dict)
    """Settings that the user gave to all configurations."""

    @property
    def best(self) -> Tried:
        """The configuration with the best score; in a tie the published one, then the smaller rate, then the first."""
        return min(
            self.ties, key=lambda one: (not one.configuration.published, one.configuration.settings.get(RATE, 0))
        )

    @property
    def ties(self) -> list[Tried]:
        """All configurations whose score is shown as equal to the best."""
        least = min(self._loss(one) for one in self.scored)
        return [one for one in self.scored if self._loss(one) - least < TIED]

    @property
    def scored(self) -> list[Tried]:
        return [one for one in self.tried if one.score is not None]

    @property
    def published(self) -> Tried:
        return next(one for one in self.tried if one.configuration.published)

    def gap_to_best(self, one: Tried) -> float | None:
        """How much worse a score is than the best."""
        return None if one.score is None else self._loss(one) - self._loss(self.best)

    def neighbours(self) -> list[Tried]:
        """Configurations that differ from the best in one setting, by one place if its values are ordered."""
        return [one for one in self.tried if self._steps(one) == 1]

    def edges(self) -> dict[str, Side]:
        """Settings whose best value is the smallest or the largest of the search, and on which side."""
        chosen = self.best.configuration.settings
        edges: dict[str, Side] = {}
        for key, values in self._axes().items():
            if is_ordered(values) and chosen[key] in (min(values), max(values)):
                edges[key] = "least" if chosen[key] == min(values) else "largest"
        return edges

    @property
    def widened(self) -> int:
        return max(one.configuration.widened for one in self.tried)

    def wider(self) -> list[Configuration]:
        """The configurations that a wider search adds: a value beyond each edge, in every combination with the others.

        Empty if the choice is not at an edge, or if the setting is at its bound.
        """
        axes, kind, first = self._axes(), self.variant.method_class.Settings, self.best.configuration
        for key, side in self.edges().items():
            if (value := next_value(kind, key, axes[key], side)) is not None:
                axes[key] = (value, *axes[key]) if side == "least" else (*axes[key], value)
        known = [one.configuration.settings for one in self.tried]
        found = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        added = replace(first, published=False, widened=self.widened + 1)
        return [replace(added, settings=settings) for settings in found if settings not in known]

    def chosen(self) -> Chosen:
        """The row of the file of chosen settings."""
        best, variant = self.best, self.variant
        settings = {**self.given, **best.configuration.settings}
        about = (variant.title, variant.method, best.configuration.preset, settings, variant.fixed)
        return Chosen(*about, best.score, self.published.score, tuple(self.edges()), self.widened)

    def _loss(self, one: Tried) -> float:
        assert one.score is not None
        return -one.score if self.metric.higher else one.score

    def _axes(self) -> dict[str, tuple[Any, ...]]:
        """All values of each setting in the search, numbers in rising order."""
        settings = [one.configuration.settings for one in self.tried]
        axes = {key: tuple(dict.fromkeys(one[key] for one in settings)) for key in settings[0]}
        return {key: tuple(sorted(values)) if is_ordered(values) else values for key, values in axes.items()}

    def _steps(self, other: Tried) -> int:
        """Places between a configuration and the best one."""
        best, steps = self.best.configuration.settings, 0
        for key, values in self._axes().items():
            here, there = values.index(best[key]), values.index(other.configuration.settings[key])
            steps += abs(here - there) if is_ordered(values) else here != there
        return steps


def choose(
    tried: Sequence[Configuration], specs: Sequence[RunSpec], ends: Sequence[Complete | Failed]
) -> tuple[list[Choice], list[Variant]]:
    """The choices of the variants whose runs have all ended, at least one with a score; and the other variants."""
    ended = {end.number: end for end in ends}
    complete = {n: end.result for n, end in ended.items() if isinstance(end, Complete)}
    sources = [result for number, result in complete.items() if specs[number].method == SOURCE]
    choices, waiting = [], []
    for variant in {one.variant.key: one.variant for one in tried}.values():
        mine = [one for one in tried if one.variant.key == variant.key]
        numbers = {one.name: [n for n, spec in enumerate(specs) if spec.name == one.name] for one in mine}
        every = [n for several in numbers.values() for n in several]
        scored = [_tried(one, [complete.get(n) for n in numbers[one.name]]) for one in mine]
        if not all(n in ended for n in every) or not any(one.score is not None for one in scored):
            waiting.append(variant)
            continue
        metric = next(complete[n] for n in every if n in complete).metric
        own = {*mine[0].settings, *variant.fixed}
        given = {key: value for key, value in specs[every[0]].settings.items() if key not in own}
        choices.append(Choice(variant, metric, mean_of([source.mean_score for source in sources]), scored, given))
    return choices, waiting


def _tried(configuration: Configuration, results: Sequence[Result | None]) -> Tried:
    score = mean_of([None if result is None else result.mean_score for result in results])
    return Tried(configuration, score, sum(result.seconds for result in results if result is not None))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
