"""`testdg leaderboard`: every method on the same streams, as a table, a page, figures and lines of runs."""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from testdg.cli.bench import BenchRuns, check_places, write_texts
from testdg.cli.display import Bar, print_failures
from testdg.cli.options import BenchOptions, BoardOptions, RunChoices
from testdg.data.benchmarks import load_benchmark
from testdg.errors import UserError
from testdg.files import write_files
from testdg.report.bench import Layout
from testdg.report.board import board_figures, board_markdown, board_page, board_table, outcome
from testdg.report.figures import files_by_name
from testdg.report.page import check_folder
from testdg.report.table import plain_table
from testdg.runs import Result
from testdg.runs.result import RUNS, read_lines, to_line
from testdg.studies import Complete, RunSpec
from testdg.studies.analyses.cost import Costs, measure_costs, read_costs
from testdg.studies.grid import read_settings
from testdg.studies.leaderboard import (
    FIRST,
    StreamRun,
    best_of,
    find_streams,
    leaderboard_runs,
    make_board,
    row_entry,
    stored_runs,
)
from testdg.studies.variants import Tuned, Variant, compatible_variants, find_variants

NamedRuns = list[tuple[str, str, Result]]


def leaderboard_command(request: BoardOptions, chosen: RunChoices, places: BenchOptions, *, as_json: bool) -> bool:
    """Compute the missing runs and write the leaderboard, or show stored ones; False if a run failed."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    write = partial(_write, folder=request.report, places=places, console=console, as_json=as_json)
    check_folder(request.report, "--report")
    check_places(places)
    if request.show:
        results = [run for folder in request.show for run in read_lines(folder / RUNS) if isinstance(run, Result)]
        costs = {name: cost for folder in request.show for name, cost in read_costs(folder).items()}
        write(stored_runs(results), costs)
        return True
    contest = _Contest(request, chosen, places, console)
    runs = contest.runs
    try:
        contest.run()
        costs = contest.costs() if request.cost else read_costs(request.report)
    except KeyboardInterrupt:  # the runs that are complete
        if contest.named_runs():
            write(contest.named_runs(), read_costs(request.report))
        raise
    write(contest.named_runs(), costs, runs.failures())
    print_failures(runs.specs, runs.failed)
    return not runs.failed


class _Contest:
    """The runs of a leaderboard: all methods with the first seed, then the best with all seeds and longer."""

    def __init__(self, request: BoardOptions, chosen: RunChoices, places: BenchOptions, console: Console) -> None:
        self.request, self.values = request, chosen.values
        self.runs = BenchRuns(places, console)
        self.entered: list[StreamRun] = []
        """The runs with their streams."""
        names = self.values["benchmark"]
        if len(names) != 1:
            raise UserError("a leaderboard is for one benchmark: name one with --benchmark", code="several-benchmarks")
        options = {key: value for key, value in self.values.items() if key == "domains"}
        self.benchmark = load_benchmark(names[0], self.values.get("data"), **options)
        self.streams = find_streams(request.streams, self.benchmark)
        self.variants = self._variants()
        self.settings = read_settings(chosen.pairs, [variant.method for variant in self.variants])

    def _variants(self) -> list[Variant]:
        """The named variants; otherwise all in the file of chosen settings; otherwise all."""
        file = self.values.get("tuned")
        rows = [] if file is None else [*Tuned.read(file).rows]
        keys = self.request.methods or rows
        variants = find_variants(keys, self.benchmark.task)
        if rows and (lacking := [one.key for one in variants if one.key not in rows]):
            message = f"{file} has nothing for {lacking[0]}: choose with `testdg tune {lacking[0]}` first"
            raise UserError(message, code="not-tuned")
        if keys:
            return variants
        return compatible_variants(
            variants, leaderboard_runs(variants, self.benchmark, self.streams, self.values)[0].spec
        )

    def run(self) -> None:
        seeds = self.values.get("seed", [0])
        self._run(self.variants, seeds[:1], best=False)
        if self.request.best and self.named_runs():
            names = best_of(make_board(self.named_runs()), self.request.best)
            self._run([one for one in self.variants if one.title in names], seeds, best=True)

    def _run(self, variants: Sequence[Variant], seeds: Sequence[int], *, best: bool) -> None:
        """Compute the runs that are new."""
        mine = {variant.method for variant in variants}
        settings = {method: given for method, given in self.settings.items() if method in mine}
        values = {**self.values, "seed": list(seeds), "settings": settings}
        found = leaderboard_runs(variants, self.benchmark, self.streams, values, best=best)
        known = set(self.entered)
        fresh = [one for one in found if one not in known]
        self.entered += fresh
        # the cost of the runs on the first stream is measured later, from their states
        self.runs.compute([one.spec for one in fresh], lambda number: self.entered[number].stream != FIRST)

    def complete(self) -> list[tuple[StreamRun, Result]]:
        """Runs with a result, in the order of the declaration."""
        return [(self.entered[end.number], end.result) for end in self.runs.ends if isinstance(end, Complete)]

    def named_runs(self) -> NamedRuns:
        return [(one.stream, one.spec.name, result) for one, result in self.complete()]

    def costs(self) -> Costs:
        """The costs of the first run of each row, measured one after the other."""
        firsts: dict[str, tuple[RunSpec, Result]] = {}
        for one, run in self.complete():
            if one.stream == FIRST:
                firsts.setdefault(one.spec.name, (one.spec, run))
        with Bar(self.runs.console) as bar:
            return measure_costs(list(firsts.values()), self.request.report, bar.update)


def _write(
    runs: NamedRuns,
    costs: Costs,
    failures: Sequence[dict[str, str]] = (),
    *,
    folder: Path,
    places: BenchOptions,
    console: Console,
    as_json: bool,
) -> None:
    """Write table, page, figures and runs, and show the table."""
    if not runs:
        raise UserError("no run is complete: there is nothing to show", code="no-runs")
    board = make_board(runs)
    figures, tables = board_figures(board, costs), list(board.tables.values())
    entries = [(run, row_entry(stream, place, row)) for place, (stream, row, run) in enumerate(runs)]
    lines = "".join(to_line(*entry) for entry in entries)

    def text(path: Path) -> str:
        place = Path(os.path.relpath(folder / "figures", path.parent)).as_posix()
        return board_markdown(board, costs, figures, place)

    files = {
        "leaderboard.md": text(folder / "leaderboard.md").encode(),
        "leaderboard.html": board_page(board, costs, figures).encode(),
        RUNS: lines.encode(),
    }
    write_files(folder, files | files_by_name(figures))
    texts = {places.csv: lambda: Layout().csv(tables), places.markdown: lambda: text(places.markdown or folder)}
    write_texts({**texts, places.jsonl: lambda: lines})
    if as_json:
        plain = [table.to_dict() for table in tables]
        print(json.dumps({"outcome": outcome(board), "tables": plain, "failed": list(failures)}, indent=2))
    else:
        shown = [*plain_table(board_table(board, costs)), "", outcome(board), "", f"page    {folder}/leaderboard.html"]
        console.print("\n" + "\n".join(shown), markup=False)
