"""`testdg tune`: settings for methods, chosen by one rule from the same number of configurations each."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from testdg.cli.bench import BenchRuns, check_places, write_texts
from testdg.cli.display import Bar, print_failures, quieten
from testdg.cli.options import BenchOptions, RunChoices, TuneOptions
from testdg.core.settings import BUDGET
from testdg.data.benchmarks import find_benchmark, load_benchmark
from testdg.errors import UserError
from testdg.report.bench import tuning_csv, tuning_markdown, tuning_plain, tuning_text
from testdg.studies import RunSpec
from testdg.studies.grid import read_settings
from testdg.studies.tuning import (
    Configuration,
    VariantChoice,
    choose,
    chosen_preset,
    conditions,
    configurations,
    tuning_runs,
    usual_values,
)
from testdg.studies.variants import Tuned, Variant, compatible_variants, find_variants


def tune_command(request: TuneOptions, chosen: RunChoices, places: BenchOptions, *, as_json: bool) -> bool:
    """Try all configurations of some methods, choose, and write the choice; False if a run failed."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    check_places(places, request.write)
    earlier = Tuned.read(request.write) if request.write.exists() else None
    search = SettingsSearch(request, *chosen)
    quieten(spec.model for spec in search.specs)
    with Bar(console) as bar:
        tuned = Tuned(conditions(search.rule, search.specs, bar), {})
    if earlier is not None:  # a file with other conditions is refused before anything runs
        tuned = tuned.joined(earlier, request.write)
    runs = BenchRuns(places, console)
    try:
        search.run(runs)
    except KeyboardInterrupt:  # choose for the methods that are complete
        _write(search, runs, tuned, as_json=as_json)
        raise
    _write(search, runs, tuned, as_json=as_json)
    return not runs.failed


class SettingsSearch:
    """The configurations of all variants and their runs; a search that is widened adds configurations."""

    def __init__(self, request: TuneOptions, values: Mapping[str, Any], pairs: Sequence[str]) -> None:
        names = values["benchmark"]
        if len(names) != 1:
            message = "settings are chosen on one benchmark: name one with --benchmark"
            raise UserError(message, code="several-benchmarks")
        rates = read_rates(request.rates)
        self.file, self.limit, self.rule = request.write, request.widen, tuning_rule(rates, request.widen)
        variants = find_variants(request.methods or [], find_benchmark(names[0]).task)
        self.values = usual_values(load_benchmark(names[0], values.get("data")), values)
        self.settings = read_settings(pairs, [variant.method for variant in variants])
        self.tried: list[Configuration] = []
        for variant in variants:
            self.tried += configurations(variant, chosen_preset(variant, names[0], self.values), rates)
        self.specs = self._runs(self.tried)
        if not request.methods:
            able = compatible_variants(variants, self.specs[0])
            self.tried = [one for one in self.tried if one.variant in able]
            self.specs = self._runs(self.tried)

    def _runs(self, tried: Sequence[Configuration]) -> list[RunSpec]:
        return tuning_runs(tried, self.values, self.settings)

    def run(self, runs: BenchRuns) -> None:
        """Compute all runs, then those that wider searches add, until they add none."""
        runs.compute(self.specs, drops_state=lambda number: True)
        while more := [one for added in self._wider(runs).values() for one in added]:
            rows = ", ".join(dict.fromkeys(one.variant.key for one in more))
            runs.console.print(f"widening the search of {rows}: {len(more)} more configurations", markup=False)
            self.tried += more
            known = set(runs.specs)  # Source is
            fresh = [spec for spec in self._runs(more) if spec not in known]
            runs.compute(fresh, drops_state=lambda number: True)

    def _wider(self, runs: BenchRuns) -> dict[str, list[Configuration]]:
        """The configurations that are still to be added, by key of the variant."""
        choices, _ = choose(self.tried, runs.specs, runs.ends)
        found = {choice.variant.key: choice.wider() for choice in choices if choice.widened < self.limit}
        return {key: added for key, added in found.items() if added}

    def choose(self, runs: BenchRuns) -> tuple[list[VariantChoice], list[Variant]]:
        """The choice of each variant whose search is complete, and the other variants."""
        choices, waiting = choose(self.tried, runs.specs, runs.ends)
        wider = self._wider(runs)
        waiting += [choice.variant for choice in choices if choice.variant.key in wider]
        return [choice for choice in choices if choice.variant.key not in wider], waiting


def read_rates(text: str | None) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < math.inf for rate in rates):
        message = f"--rates takes learning rates above 0, separated by commas, as in 3e-4,1e-3; got {text!r}"
        raise UserError(message, code="wrong-value")
    return rates


def tuning_rule(rates: Sequence[float], widen: int = 0) -> str:
    """How settings are chosen, in words."""
    rule = f"the best mean score of {BUDGET} configurations a method, the published settings among them"
    if rates:
        tried = ", ".join(f"{rate:g}" for rate in rates)
        rule = f"the best mean score of the learning rates {tried} and the published one, all else as published"
    if widen:
        rule += "; where the best value is the least or the largest, the next one on that side is tried, too, by the "
        rule += f"ratio of the last two, up to {widen} times"
    return rule


def _write(search: SettingsSearch, runs: BenchRuns, tuned: Tuned, *, as_json: bool) -> None:
    """Write and show the choices of all complete variants."""
    choices, waiting = search.choose(runs)
    places = runs.places
    write_texts({places.jsonl: runs.lines})
    if choices:
        lines = []
        for key, value in tuned.conditions.items():
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{key.replace('_', ' '):<18} {text}")
        rows = {choice.variant.key: choice.chosen() for choice in choices}
        Tuned(tuned.conditions, {**tuned.rows, **rows}).write(search.file)
        texts = {places.csv: lambda: tuning_csv(choices), places.markdown: lambda: tuning_markdown(choices, lines)}
        write_texts(texts)
        if not as_json:
            runs.console.print(f"\n{tuning_text(choices, lines)}\n\nchoice  {search.file}", markup=False)
    if as_json:
        plain = {"choices": tuning_plain(choices), "file": str(search.file), "failed": runs.failures()}
        print(json.dumps(plain, indent=2))
    if waiting:
        print(f"not chosen yet: {', '.join(one.key for one in waiting)}", file=sys.stderr)
    print_failures(runs.specs, runs.failed)
