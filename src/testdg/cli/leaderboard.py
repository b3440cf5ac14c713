"""`testdg leaderboard`: every method on the same streams, as a table, a page, figures and lines of runs."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from testdg.cli.bar import Bar
from testdg.cli.bench import check_folder, check_places, complain, drop_state, run_cells, told_failures, write_texts
from testdg.cli.options import BenchOptions
from testdg.data.benchmarks import load_benchmark
from testdg.errors import UserError
from testdg.evaluation import Result
from testdg.evaluation.kept import RUNS, read_lines, to_line
from testdg.experiments import Cell, Complete, Failed
from testdg.experiments.analyses.cost import Costs, measure_costs, read_costs
from testdg.experiments.grid import read_settings
from testdg.experiments.leaderboard import FIRST, Board, Entered, best_of, enter, kept_runs, make_board, named
from testdg.experiments.tuned import Tuned
from testdg.experiments.variants import Variant, find_variants, willing
from testdg.files import write_files
from testdg.report.bench import bench_csv
from testdg.report.board import board_markdown, board_page, board_table, outcome
from testdg.report.board_figures import board_pictures
from testdg.report.table import plain_table

Ends = list[Complete | Failed]
NamedRuns = list[tuple[str, str, Result]]


@dataclass(frozen=True, kw_only=True)
class BoardRequest:
    """What a user asked for."""

    keys: Sequence[str]
    values: Mapping[str, Any]
    pairs: Sequence[str]
    best: int
    report: Path
    cost: bool
    show: Path | None


def leaderboard_command(request: BoardRequest, places: BenchOptions, *, as_json: bool) -> bool:
    """Run what is missing and write the leaderboard, or show one that was kept; False where a run failed."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    check_folder(request.report, "--report")
    check_places(places)
    if request.show is not None:
        kept = [run for run in read_lines(request.show / RUNS) if isinstance(run, Result)]
        _write(kept_runs(kept), read_costs(request.show), request.report, places, console, as_json=as_json)
        return True
    contest = _Contest(request, places, console)
    try:
        contest.run()
        costs = contest.costs() if request.cost else read_costs(request.report)
    except KeyboardInterrupt:  # what is complete is told all the same
        if contest.named_runs():
            _write(contest.named_runs(), read_costs(request.report), request.report, places, console, as_json=as_json)
        raise
    failures = told_failures(contest.cells, contest.failed)
    _write(contest.named_runs(), costs, request.report, places, console, as_json=as_json, failures=failures)
    complain(contest.cells, contest.failed)
    return not contest.failed


class _Contest:
    """The runs of a leaderboard: all methods with the first seed, then the best with all seeds and longer."""

    def __init__(self, request: BoardRequest, places: BenchOptions, console: Console) -> None:
        self.request, self.places, self.console = request, places, console
        self.entered: list[Entered] = []
        self.ends: Ends = []
        names = request.values["benchmark"]
        if len(names) != 1:
            raise UserError("a leaderboard is for one benchmark: name one with --benchmark")
        options = {key: value for key, value in request.values.items() if key == "domains"}
        self.benchmark = load_benchmark(names[0], request.values.get("data"), **options)
        self.variants = self._variants()
        self.settings = read_settings(request.pairs, [variant.method for variant in self.variants])

    def _variants(self) -> list[Variant]:
        """Those that were asked for; all in the file of chosen settings; or all there are."""
        file = self.request.values.get("tuned")
        rows = [] if file is None else [*Tuned.read(file).rows]
        keys = self.request.keys or rows
        variants = find_variants(keys, self.benchmark.task)
        if rows and (lacking := [one.key for one in variants if one.key not in rows]):
            raise UserError(f"{file} has nothing for {lacking[0]}: choose with `testdg tune {lacking[0]}` first")
        return variants if keys else willing(variants, enter(variants, self.benchmark, self.request.values)[0].cell)

    @property
    def cells(self) -> list[Cell]:
        return [one.cell for one in self.entered]

    @property
    def failed(self) -> list[Failed]:
        return [end for end in self.ends if isinstance(end, Failed)]

    def run(self) -> None:
        """Run both parts."""
        seeds = self.request.values.get("seeds", [0])
        self._run(self.variants, seeds[:1], best=False)
        if self.request.best and self.named_runs():
            names = best_of(make_board(self.named_runs()), self.request.best)
            self._run([one for one in self.variants if one.title in names], seeds, best=True)

    def _run(self, variants: Sequence[Variant], seeds: Sequence[int], *, best: bool) -> None:
        """Run what was not run before."""
        mine = {variant.method for variant in variants}
        settings = {method: given for method, given in self.settings.items() if method in mine}
        values = {**self.request.values, "seeds": list(seeds), "settings": settings}
        found = enter(variants, self.benchmark, values, best=best)
        fresh = [replace(one, cell=replace(one.cell, track=self.places.track)) for one in found]
        known = set(self.entered)
        fresh = [one for one in fresh if one not in known]
        start = len(self.entered)
        self.entered += fresh

        def hear(end: Complete | Failed) -> None:
            self.ends.append(replace(end, number=start + end.number))
            if self.entered[start + end.number].stream != FIRST:  # of those, the cost is measured
                drop_state(end)

        run_cells([one.cell for one in fresh], self.places, self.console, hear)

    def complete(self) -> list[tuple[Entered, Result]]:
        """Runs that have a result, in the order of the declaration."""
        ended = sorted(self.ends, key=lambda end: end.number)
        return [(self.entered[end.number], end.result) for end in ended if isinstance(end, Complete)]

    def named_runs(self) -> NamedRuns:
        """The same with names."""
        return [(one.stream, one.cell.name, result) for one, result in self.complete()]

    def costs(self) -> Costs:
        """What the first run of each row costs, measured one after the other."""
        firsts = {one.cell.name: (one.cell, run) for one, run in reversed(self.complete()) if one.stream == FIRST}
        with Bar(self.console) as bar:
            return measure_costs(list(firsts.values()), self.request.report, bar.update)


def _write(
    runs: NamedRuns,
    costs: Costs,
    folder: Path,
    places: BenchOptions,
    console: Console,
    *,
    as_json: bool,
    failures: Sequence[Any] = (),
) -> None:
    """Write table, page, figures and runs, and show the table."""
    if not runs:
        raise UserError("no run is complete: there is nothing to show")
    board = make_board(runs)
    pictures = board_pictures(board, costs)
    lines = "".join(to_line(run, named(stream, place, row)) for place, (stream, row, run) in enumerate(runs))

    def text(path: Path) -> str:
        figures = Path(os.path.relpath(folder / "figures", path.parent)).as_posix()
        return board_markdown(board, costs, pictures, figures)

    files = {
        "leaderboard.md": text(folder / "leaderboard.md").encode(),
        "leaderboard.html": board_page(board, costs, pictures).encode(),
        RUNS: lines.encode(),
    }
    for picture in pictures:
        files |= {f"figures/{picture.name}.{kind}": data for kind, data in picture.files.items()}
    write_files(folder, files)
    write_texts(
        {
            places.csv: lambda: bench_csv(list(board.tables.values())),
            places.markdown: lambda: text(places.markdown or folder),
            places.jsonl: lambda: lines,
        }
    )
    if as_json:
        print(json.dumps({**_plain(board), "failed": list(failures)}, indent=2))
    else:
        shown = [*plain_table(board_table(board, costs)), "", outcome(board), "", f"page    {folder}/leaderboard.html"]
        console.print("\n" + "\n".join(shown), markup=False)


def _plain(board: Board) -> dict[str, Any]:
    return {"outcome": outcome(board), "tables": [table.to_dict() for table in board.tables.values()]}
