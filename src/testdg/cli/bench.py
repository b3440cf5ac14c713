"""`testdg bench` and `testdg ablate`: a grid of runs and its tables; functions that all commands with grids share."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from testdg.cli.display import Bar, BenchDisplay, Training, print_failures, quieten
from testdg.cli.options import BenchOptions, Chosen, uses_ray
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


def bench_command(file: Path | None, chosen: Chosen, places: BenchOptions, *, as_json: bool) -> bool:
    """Run the grid of a file or of the options and show its tables; False if a run failed."""
    return run_grid(make_grid(file, *chosen), places, Layout(), as_json=as_json)


def ablate_command(name: str, chosen: Chosen, places: BenchOptions, *, as_json: bool) -> bool:
    """Run an ablation and show its tables, or list all of them; False if a run failed."""
    if name == "list":
        list_ablations(as_json)
        return True
    ablation = find_ablation(name)
    grid = ablation.grid(chosen.values, read_settings(chosen.pairs, [METHOD]).get(METHOD, {}))
    return run_grid(grid, places, Layout(ablation.columns, ablation.published), as_json=as_json)


def list_ablations(as_json: bool) -> None:
    about = [{"name": one.name, "title": one.title, "rows": list(one.rows)} for one in ABLATIONS.values()]
    lines = [f"{one.name:<18}{f'{len(one.rows)} rows':<8}  {one.title}" for one in ABLATIONS.values()]
    print(json.dumps(about, indent=2) if as_json else "\n".join(lines))


def run_grid(grid: Grid, places: BenchOptions, layout: Layout, *, as_json: bool) -> bool:
    """Run a grid and show its tables; False if a run failed."""
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    check_places(places)
    specs = expand(grid)
    ends = run_specs(specs, places, console)
    store_names(grid.title, specs, ends)
    tables = summarise(specs, ends)
    texts = {places.csv: lambda: layout.csv(tables), places.markdown: lambda: layout.markdown(tables)}
    write_texts({**texts, places.jsonl: lambda: run_lines(specs, ends)})
    failed = [end for end in ends if isinstance(end, Failed)]
    if as_json:
        print(json.dumps({**layout.plain(tables), "failed": failure_records(specs, failed)}, indent=2))
    elif tables:
        console.print(f"\n{layout.text(tables)}\n\nruns  {places.out}", markup=False)
    print_failures(specs, failed)
    return not failed


def run_specs(
    specs: Sequence[RunSpec],
    places: BenchOptions,
    console: Console,
    on_end: Callable[[Complete | Failed], object] = lambda end: None,
) -> list[Complete | Failed]:
    """Prepare the source models, compute runs, and show the progress; `on_end` is called with each end."""
    engine = make_engine(places)
    quieten(spec.model for spec in specs)
    with Bar(console) as bar:
        prepare(specs, Training(bar), devices=isinstance(engine, Local))

    def notify(news: News) -> None:
        display.notify(news)
        if not isinstance(news, Running):
            on_end(news)

    with BenchDisplay(console, specs, engine.jobs) as display:
        tracked = [msgspec.structs.replace(spec, track=places.track) for spec in specs]
        return bench(tracked, places.out, engine=engine, notify=notify)


def drop_state(end: Complete | Failed) -> None:
    """Delete the adapted model of a complete run whose numbers suffice: hundreds of models would fill a disk."""
    if isinstance(end, Complete):
        shutil.rmtree(end.result.folder / "state", ignore_errors=True)


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


def run_lines(specs: Sequence[RunSpec], ends: Sequence[Complete | Failed]) -> str:
    """Every complete run on a line: the name of its row, and its result."""
    runs = [{"name": specs[end.number].name, **end.result.to_dict()} for end in ends if isinstance(end, Complete)]
    return "".join(json.dumps(run) + "\n" for run in runs)


def failure_records(specs: Sequence[RunSpec], failed: Sequence[Failed]) -> list[dict[str, str]]:
    return [{"run": str(specs[end.number]), "sentence": end.sentence} for end in failed]
