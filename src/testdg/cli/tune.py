"""`testdg tune`: settings for methods, chosen by one rule from the same number of configurations each."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.bench import check_places, drop_state, run_cells, run_lines, told_failures, write_texts
from testdg.cli.bench_progress import complain
from testdg.cli.options import BenchOptions, Chosen
from testdg.data.benchmarks import find_benchmark, load_benchmark
from testdg.errors import UserError
from testdg.experiments import Cell, Complete, Failed, expand
from testdg.experiments.grid import SOURCE, read_settings
from testdg.experiments.tuned import Tuned
from testdg.experiments.tuning import (
    Configuration,
    check_given,
    choose,
    configurations,
    in_turn,
    preset_of,
    tuning_grid,
    usual_values,
)
from testdg.experiments.variants import find_variants, willing
from testdg.methods.settings import BUDGET
from testdg.report.tuning import tuning_csv, tuning_markdown, tuning_plain, tuning_text

Ends = Sequence[Complete | Failed]


def tune_command(
    keys: Sequence[str], chosen: Chosen, places: BenchOptions, file: Path, rates: str | None = None, *, as_json: bool
) -> bool:
    """Try all configurations of some methods, choose, and write the choice; False where a run failed."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    check_places(places, file)
    earlier = Tuned.read(file) if file.exists() else None
    wanted = read_rates(rates)
    rule = tuning_rule(wanted)
    tried, cells = make_cells(keys, *chosen, wanted)
    cells = [replace(cell, track=places.track) for cell in cells]
    heard: list[Complete | Failed] = []

    def hear(end: Complete | Failed) -> None:
        heard.append(end)
        drop_state(end)
        if earlier is not None and cells[end.number].method == SOURCE and isinstance(end, Complete):
            Tuned(conditions(rule, cells, heard)).joined(earlier, file)  # refuses other conditions before the long part

    try:
        ends = run_cells(cells, places, console, hear)
    except KeyboardInterrupt:  # what is complete is told all the same
        _finish(rule, tried, cells, heard, places, file, earlier, console, as_json=as_json)
        raise
    return _finish(rule, tried, cells, ends, places, file, earlier, console, as_json=as_json)


def make_cells(
    keys: Sequence[str], values: Mapping[str, Any], pairs: Sequence[str], rates: Sequence[float] = ()
) -> tuple[list[Configuration], list[Cell]]:
    """The configurations of some methods, of all where none is named, and their runs, method by method."""
    names = values["benchmark"]
    if len(names) != 1:
        raise UserError("settings are chosen on one benchmark: name one with --benchmark")
    variants = find_variants(keys, find_benchmark(names[0]).task)
    values = usual_values(load_benchmark(names[0], values.get("data")), values)
    presets = [preset_of(variant, names[0], values) for variant in variants]
    tried = [one for pair in zip(variants, presets, strict=True) for one in configurations(*pair, rates)]
    settings = read_settings(pairs, [variant.method for variant in variants])
    check_given(tried, settings)
    cells = expand(tuning_grid(tried, values, settings))
    if not keys:
        able = {variant.method for variant in willing(variants, cells[0])}
        tried = [one for one in tried if one.variant.method in able]
        cells = [cell for cell in cells if cell.method in (SOURCE, *able)]
    return tried, in_turn(cells, tried)


def read_rates(text: str | None) -> list[float]:
    """Learning rates, separated by commas."""
    try:
        rates = [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < math.inf for rate in rates):
        raise UserError(f"--rates takes learning rates above 0, separated by commas, as in 3e-4,1e-3; got {text!r}")
    return rates


def tuning_rule(rates: Sequence[float]) -> str:
    """How settings are chosen, in words."""
    if rates:
        tried = ", ".join(f"{rate:g}" for rate in rates)
        return f"the best mean score of the learning rates {tried} and the published one, all else as published"
    return f"the best mean score of {BUDGET} configurations a method, the published settings among them"


def _finish(
    rule: str,
    tried: Sequence[Configuration],
    cells: Sequence[Cell],
    ends: Ends,
    places: BenchOptions,
    file: Path,
    earlier: Tuned | None,
    console: Console,
    *,
    as_json: bool,
) -> bool:
    """Choose among what is complete, write and show it."""
    choices, waiting = choose(tried, cells, ends)
    failed = [end for end in ends if isinstance(end, Failed)]
    write_texts({places.jsonl: lambda: run_lines(cells, ends)})
    if choices:
        about = conditions(rule, cells, ends)
        told = {key: ", ".join(map(str, one)) if isinstance(one, list) else one for key, one in about.items()}
        lines = [f"{key.replace('_', ' '):<18} {text}" for key, text in told.items()]
        tuned = Tuned(about, {choice.variant.key: choice.chosen() for choice in choices})
        (tuned if earlier is None else tuned.joined(earlier, file)).write(file)
        texts = {places.csv: lambda: tuning_csv(choices), places.markdown: lambda: tuning_markdown(choices, lines)}
        write_texts(texts)
        if not as_json:
            console.print(f"\n{tuning_text(choices, lines)}\n\nchoice  {file}", markup=False)
    if as_json:
        plain = {"choices": tuning_plain(choices), "file": str(file), "failed": told_failures(cells, failed)}
        print(json.dumps(plain, indent=2))
    if waiting:
        print(f"not chosen yet: {', '.join(one.key for one in waiting)}", file=sys.stderr)
    complain(cells, failed)
    return not failed


def conditions(rule: str, cells: Sequence[Cell], ends: Ends) -> dict[str, Any]:
    """What the choice depends on, from the first run of Source; whatever devices it was computed on."""
    cell, record = next(
        (cells[end.number], end.result.record)
        for end in ends
        if isinstance(end, Complete) and cells[end.number].method == SOURCE
    )
    about = {key: record[key] for key in ("benchmark", "domains", "severity", "images_per_domain", "batch_size")}
    seeds = sorted({one.seed for one in cells if one.method != SOURCE})
    model = {key: record[key] for key in ("model", "model_fingerprint", "precision")}
    return {"rule": rule, **about, "orders": "both", "protocol": cell.asked, **model, "seeds": seeds}
