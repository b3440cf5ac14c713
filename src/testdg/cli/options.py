"""What commands share: options, most of them of runs, and what torch must know before it is imported."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from testdg.choices import CHOICES, Choice, chosen, option_name

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Setting of a method; of several, METHOD.KEY=VALUE; repeatable."),
]
Subset = Annotated[str | None, typer.Option(metavar=CHOICES["subset"].metavar, help=CHOICES["subset"].help)]
Jobs = Annotated[int, typer.Option(help="Runs at the same time, a process each; with Ray, runs that share a GPU.")]
Engine = Annotated[str, typer.Option(metavar="local|ray", help="Where runs go: this machine, or a Ray cluster.")]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Ray cluster; RAY_ADDRESS, or a new one here, if left out.")
]
GpusPerCell = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of a GPU that a run takes on a Ray cluster, as in 0.1.")
]
Cpus = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of a core that a stream takes on a Ray cluster (1).")
]
Gpus = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of a GPU that a stream takes on a Ray cluster, as in 0.1.")
]
Out = Annotated[str, typer.Option(metavar="FOLDER|URL", help="Parent of the run folders; s3://... for complete runs.")]
Track = Annotated[str | None, typer.Option(metavar="tensorboard", help="Write the numbers of every batch for it, too.")]
Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as CSV, too.")]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown, too.")]
Jsonl = Annotated[Path | None, typer.Option(metavar="FILE", help="Write every run as a line of JSON, too.")]


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Where the runs of a grid go, and what is written about them."""

    jobs: Jobs = 1
    engine: Engine = "local"
    address: Address = None
    gpus_per_cell: GpusPerCell = None
    out: Out = "runs"
    track: Track = None
    csv: Csv = None
    markdown: Markdown = None
    jsonl: Jsonl = None


Command = Callable[..., None]
_HIDDEN = "other_"  # a second name of an option is an option of its own, which the help does not show


def with_choices(*left_out: str, several: bool = True, **defaults: str) -> Callable[[Command], Command]:
    """Give a command an option for every choice about a run; it gets what was chosen as `values`.

    Where it takes `several` benchmarks, protocols or seeds, the help shows names in the plural; both are taken.
    """
    keys = [key for key in CHOICES if key not in left_out]
    plural = [key for key in keys if several and CHOICES[key].plural]
    names = {key: f"{option_name(key)}s" if key in plural else option_name(key) for key in keys}
    options = [_parameter(key, CHOICES[key], names[key], defaults.get(key)) for key in keys]
    options += [_parameter(_HIDDEN + key, CHOICES[key], option_name(key), None, hidden=True) for key in plural]
    return lambda command: _spread(command, "values", options, _chosen)


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """What was chosen, by whichever name."""
    other = {key.removeprefix(_HIDDEN): given.pop(key) for key in list(given) if key.startswith(_HIDDEN)}
    return chosen({**given, **{key: value for key, value in other.items() if value is not None}})


def with_bench_options(command: Command) -> Command:
    """Give a command the options of `BenchOptions`, which it gets as `places`."""
    hints = get_type_hints(BenchOptions, include_extras=True)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    options = [
        inspect.Parameter(f.name, kind, default=f.default, annotation=hints[f.name]) for f in fields(BenchOptions)
    ]
    return _spread(command, "places", options, lambda values: BenchOptions(**values))


def _spread(
    command: Command, name: str, options: list[inspect.Parameter], gather: Callable[[dict[str, Any]], Any]
) -> Command:
    """The command with options in place of one parameter, which gets all of them gathered."""

    def run(**given: Any) -> None:
        command(**{name: gather({option.name: given.pop(option.name) for option in options})}, **given)

    own = inspect.signature(command, eval_str=True).parameters
    parameters = sorted([*(own[key] for key in own if key != name), *options], key=_place)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _parameter(key: str, choice: Choice, name: str, default: str | None, *, hidden: bool = False) -> inspect.Parameter:
    """The option of a choice."""
    value, otherwise = (bool, False) if choice.type is bool else (choice.type | None, default)
    about = typer.Option(name, metavar=choice.metavar, help=choice.help, hidden=hidden)
    return inspect.Parameter(
        key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=otherwise, annotation=Annotated[value, about]
    )


def _place(parameter: inspect.Parameter) -> int:
    """Arguments first, then what is run, then where it goes and how it is shown."""
    if parameter.default is inspect.Parameter.empty:  # not an option yet
        return -1
    kinds = [type(note).__name__ for note in getattr(parameter.annotation, "__metadata__", ())]
    return 0 if "ArgumentInfo" in kinds else 1 if parameter.name in CHOICES else 3 if parameter.name == "json" else 2


def prepare_torch(*, bf16: bool) -> None:
    """Set what torch reads when it is imported; the user's own environment wins."""
    # Threads that wait by spinning take the cores from each other: beside another job, a run is many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if bf16:  # some virtual machines announce AMX and then kill the process that uses it: keep to plain AVX-512
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
