"""`testdg bench` and `testdg ablate`: a grid of runs and its tables; functions that all commands with grids share."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from testdg.cli.display import Bar, BenchDisplay, print_failures, quieten
from testdg.cli.options import BenchOptions, RunChoices, uses_ray
from testdg.errors import UserError
from testdg.files import replace_text, writing
from testdg.report.bench import Layout
from testdg.report.page import check_folder
from testdg.runs.observer import check_tracker
from testdg.studies import (
    Complete,
    Engine,
    Failed,
    Grid,
    Local,
    News,
    Running,
    RunSpec,
    bench,
    expand,
    prepare,
    summarise,
)
from testdg.studies.ablations import ABLATIONS, METHOD, find_ablation
from testdg.studies.grid import read_settings
from testdg.studies.rows import store_names
from testdg.studies.storage import Remote, find_out


def bench_command(file: Path | None, chosen: RunChoices, places: BenchOptions, *, as_json: bool) -> bool:
    """Run the grid of a file or of the options and show its tables; False if a run failed."""
    return run_grid(make_grid(file, *chosen), places, Layout(), as_json=as_json)


def ablate_command(name: str, chosen: RunChoices, places: BenchOptions, *, as_json: bool) -> bool:
    """Run an ablation and show its tables, or list all of them; False if a run failed."""
    if name == "list":
        list_ablations(as_json)
        return True
    ablation = find_ablation(name)
    grid = ablation.grid(chosen.values, read_settings(chosen.pairs, [METHOD]).get(METHOD, {}))
    return run_grid(grid, places, Layout(ablation.event_columns, ablation.published), as_json=as_json)


def list_ablations(as_json: bool) -> None:
    about = [{"name": one.name, "title": one.title, "rows": list(one.rows)} for one in ABLATIONS.values()]
    lines = [f"{one.name:<18}{f'{len(one.rows)} rows':<8}  {one.title}" for one in ABLATIONS.values()]
    print(json.dumps(about, indent=2) if as_json else "\n".join(lines))


def run_grid(grid: Grid, places: BenchOptions, layout: Layout, *, as_json: bool) -> bool:
    """Run a grid and show its tables; False if a run failed."""
    check_places(places)
    runs = BenchRuns(places, Console(stderr=as_json, highlight=False, soft_wrap=True))
    runs.compute(expand(grid))
    store_names(grid.title, runs.specs, runs.ends)
    tables = summarise(runs.specs, runs.ends)
    texts = {places.csv: lambda: layout.csv(tables), places.markdown: lambda: layout.markdown(tables)}
    write_texts({**texts, places.jsonl: runs.lines})
    if as_json:
        print(json.dumps({**layout.plain(tables), "failed": runs.failures()}, indent=2))
    elif tables:
        runs.console.print(f"\n{layout.text(tables)}\n\nruns  {places.out}", markup=False)
    print_failures(runs.specs, runs.failed)
    return not runs.failed


class BenchRuns:
    """The runs of a command, which computes them in one or several rounds, and how each ended."""

    def __init__(self, places: BenchOptions, console: Console) -> None:
        self.places, self.console = places, console
        self.specs: list[RunSpec] = []
        self._ends: dict[int, Complete | Failed] = {}

    @property
    def ends(self) -> list[Complete | Failed]:
        """The ends so far, in the order of the runs."""
        return [self._ends[number] for number in sorted(self._ends)]

    @property
    def failed(self) -> list[Failed]:
        return [end for end in self.ends if isinstance(end, Failed)]

    def compute(self, specs: Sequence[RunSpec], drops_state: Callable[[int], bool] = lambda number: False) -> None:
        """Prepare the source models, compute more runs, and show the progress.

        `drops_state` says of a run, by its place in `self.specs`, whether its numbers suffice. Its adapted model is
        then deleted: hundreds of models would fill a disk.
        """
        engine, start = make_engine(self.places), len(self.specs)
        self.specs += specs
        quieten(spec.model for spec in specs)
        with Bar(self.console) as bar:
            prepare(specs, bar, devices=isinstance(engine, Local))

        def notify(news: News) -> None:
            display.notify(news)
            if not isinstance(news, Running):
                number = start + news.number
                self._ends[number] = replace(news, number=number)
                if isinstance(news, Complete) and drops_state(number):
                    shutil.rmtree(news.result.folder / "state", ignore_errors=True)

        with BenchDisplay(self.console, specs, engine.jobs) as display:
            tracked = [msgspec.structs.replace(spec, track=self.places.track) for spec in specs]
            bench(tracked, self.places.out, engine=engine, notify=notify)

    def lines(self) -> str:
        """Every complete run on a line: the name of its row, and its result."""
        complete = [end for end in self.ends if isinstance(end, Complete)]
        runs = [{"name": self.specs[end.number].name, **end.result.to_dict()} for end in complete]
        return "".join(json.dumps(run) + "\n" for run in runs)

    def failures(self) -> list[dict[str, str]]:
        return [{"run": str(self.specs[end.number]), "sentence": end.sentence} for end in self.failed]


def make_engine(places: BenchOptions) -> Engine:
    if not uses_ray(places.engine, address=places.address, gpus_per_cell=places.gpus_per_cell):
        return Local(places.jobs)
    from testdg.studies.ray import Ray

    return Ray(places.address, jobs=places.jobs, gpus=places.gpus_per_cell)


def make_grid(file: Path | None, values: Mapping[str, Any], pairs: Sequence[str]) -> Grid:
    """The grid of a file, whose values the options override, or of the options."""
    if file is None:
        if "method" not in values:
            message = "bench needs a grid file, or --methods, as in --methods source,tent,testdg"
            raise UserError(message, code="no-method")
        return Grid({**values, "settings": read_settings(pairs, values["method"])})
    if pairs or "method" in values:
        raise UserError(
            f"{file} names the methods and their settings: leave out --methods and --set", code="option-conflict"
        )
    return Grid.from_toml(file).override(values)


def check_places(places: BenchOptions, *files: Path) -> None:
    """Refuse paths that cannot be written and trackers that are not installed, before anything is computed."""
    check_tracker(places.track)
    if isinstance(out := find_out(places.out), Remote):
        out.open()
    else:
        check_folder(out, "--out")
    for path in filter(None, (places.csv, places.markdown, places.jsonl, *files)):
        if path.is_dir() or not path.parent.is_dir():
            raise UserError(f"{path} cannot be written: name a file in a folder that exists", code="cannot-write")


def write_texts(files: Mapping[Path | None, Callable[[], str]]) -> None:
    """Write the texts of the files that are named."""
    for path, make in files.items():
        if path is not None:
            with writing(path.parent):
                replace_text(path, make())
