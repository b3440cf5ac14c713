"""`testdg tune`: settings for methods, chosen by one rule from the same number of configurations each."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from testdg.cli.bench import check_places, drop_state, failure_records, run_lines, run_specs, write_texts
from testdg.cli.display import Bar, Training, print_failures, quieten
from testdg.cli.options import BenchOptions, Chosen, TuneOptions
from testdg.core.settings import BUDGET
from testdg.data.benchmarks import find_benchmark, load_benchmark
from testdg.errors import UserError
from testdg.report.bench import tuning_csv, tuning_markdown, tuning_plain, tuning_text
from testdg.studies import Complete, Failed, RunSpec, expand
from testdg.studies.grid import read_settings
from testdg.studies.tuning import (
    Choice,
    Configuration,
    check_given,
    choose,
    chosen_preset,
    conditions,
    configurations,
    order_by_method,
    tuning_grid,
    usual_values,
)
from testdg.studies.variants import Tuned, Variant, compatible_variants, find_variants


def tune_command(request: TuneOptions, chosen: Chosen, places: BenchOptions, *, as_json: bool) -> bool:
    """Try all configurations of some methods, choose, and write the choice; False if a run failed."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    check_places(places, request.write)
    earlier = Tuned.read(request.write) if request.write.exists() else None
    tuning = Tuning(request, *chosen)
    tuning.describe(console, earlier)
    try:
        tuning.run(places, console)
    except KeyboardInterrupt:  # choose for the methods that are complete
        _write(tuning, places, earlier, console, as_json=as_json)
        raise
    _write(tuning, places, earlier, console, as_json=as_json)
    return not tuning.failed


class Tuning:
    """Configurations, their runs, and the ends of these; a search that is widened adds to all three."""

    def __init__(self, request: TuneOptions, values: Mapping[str, Any], pairs: Sequence[str]) -> None:
        names = values["benchmark"]
        if len(names) != 1:
            message = "settings are chosen on one benchmark: name one with --benchmark"
            raise UserError(message, code="several-benchmarks")
        rates = read_rates(request.rates)
        self.file, self.limit, self.rule = request.write, request.widen, tuning_rule(rates, request.widen)
        variants = find_variants(request.methods or [], find_benchmark(names[0]).task)
        self.values = usual_values(load_benchmark(names[0], values.get("data")), values)
        presets = [chosen_preset(variant, names[0], self.values) for variant in variants]
        tried = [one for pair in zip(variants, presets, strict=True) for one in configurations(*pair, rates)]
        self.settings = read_settings(pairs, [variant.method for variant in variants])
        check_given(tried, self.settings)
        if not request.methods:
            able = compatible_variants(variants, self._runs(tried)[0])
            tried = [one for one in tried if one.variant in able]
        self.tried = tried
        self.specs = self._runs(tried)
        self.ends: list[Complete | Failed] = []

    def _runs(self, tried: Sequence[Configuration]) -> list[RunSpec]:
        return order_by_method(expand(tuning_grid(tried, self.values, self.settings)), tried)

    @property
    def failed(self) -> list[Failed]:
        return [end for end in self.ends if isinstance(end, Failed)]

    def describe(self, console: Console, earlier: Tuned | None) -> None:
        """Find the conditions of the choice, and refuse a file with other conditions before anything runs."""
        quieten(spec.model for spec in self.specs)
        with Bar(console) as bar:
            self.conditions = conditions(self.rule, self.specs, Training(bar))
        if earlier is not None:
            Tuned(self.conditions).joined(earlier, self.file)

    def run(self, places: BenchOptions, console: Console) -> None:
        """Compute all runs, then those that wider searches add, until they add none."""
        self._run(self.specs, places, console)
        while more := self._wider():
            rows = ", ".join(dict.fromkeys(one.variant.key for one in more))
            console.print(f"widening the search of {rows}: {len(more)} more configurations", markup=False)
            known = set(self.specs)
            fresh = [spec for spec in self._runs(more) if spec not in known]  # Source is known
            self.tried += more
            self.specs += fresh
            self._run(fresh, places, console)

    def _run(self, specs: Sequence[RunSpec], places: BenchOptions, console: Console) -> None:
        start = len(self.specs) - len(specs)

        def on_end(end: Complete | Failed) -> None:
            self.ends.append(replace(end, number=start + end.number))
            drop_state(end)

        run_specs(specs, places, console, on_end)

    def _wider(self) -> list[Configuration]:
        choices, _ = choose(self.tried, self.specs, self.ends)
        return [one for choice in choices if choice.widened < self.limit for one in choice.wider()]

    def choose(self) -> tuple[list[Choice], list[Variant]]:
        """The choice of each variant whose search is complete, and the other variants."""
        choices, waiting = choose(self.tried, self.specs, self.ends)
        wider = {one.variant.key for one in self._wider()}
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


def _write(tuning: Tuning, places: BenchOptions, earlier: Tuned | None, console: Console, *, as_json: bool) -> None:
    """Write and show the choices of all complete variants."""
    specs, ends = tuning.specs, sorted(tuning.ends, key=lambda end: end.number)
    choices, waiting = tuning.choose()
    write_texts({places.jsonl: lambda: run_lines(specs, ends)})
    if choices:
        about = tuning.conditions
        values = {key: ", ".join(map(str, one)) if isinstance(one, list) else one for key, one in about.items()}
        lines = [f"{key.replace('_', ' '):<18} {text}" for key, text in values.items()]
        tuned = Tuned(about, {choice.variant.key: choice.chosen() for choice in choices})
        (tuned if earlier is None else tuned.joined(earlier, tuning.file)).write(tuning.file)
        texts = {places.csv: lambda: tuning_csv(choices), places.markdown: lambda: tuning_markdown(choices, lines)}
        write_texts(texts)
        if not as_json:
            console.print(f"\n{tuning_text(choices, lines)}\n\nchoice  {tuning.file}", markup=False)
    if as_json:
        failed = failure_records(specs, tuning.failed)
        print(json.dumps({"choices": tuning_plain(choices), "file": str(tuning.file), "failed": failed}, indent=2))
    if waiting:
        print(f"not chosen yet: {', '.join(one.key for one in waiting)}", file=sys.stderr)
    print_failures(specs, tuning.failed)
