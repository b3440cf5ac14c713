"""What commands share: options, most of them of runs, and what torch must know before it is imported."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument, Option

from testdg.errors import UserError, unknown
from testdg.schema import rule_of
from testdg.spec import CHOICES, chosen, keys

Json = Annotated[bool, Option("--json", help="Print JSON, and nothing else, on stdout.")]
Settings = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Setting of a method; of several, METHOD.KEY=VALUE; repeatable."),
]
Subset = Annotated[str | None, Option(metavar="WHICH", help=CHOICES["subset"].help)]
Jobs = Annotated[int, Option(help="Runs at the same time, a process each; with Ray, runs that share a GPU.")]
Address = Annotated[
    str | None, Option(metavar="HOST:PORT", help="Ray cluster; RAY_ADDRESS, or a new one here, if left out.")
]
Cpus = Annotated[
    float | None, Option(metavar="SHARE", help="Share of a core that a stream takes on a Ray cluster (1).")
]
Gpus = Annotated[
    float | None, Option(metavar="SHARE", help="Share of a GPU that a stream takes on a Ray cluster, as in 0.1.")
]
Out = Annotated[str, Option(metavar="FOLDER|URL", help="Parent of the run folders; s3://... for complete runs.")]
Track = Annotated[str | None, Option(metavar="tensorboard", help="Write the numbers of every batch for it, too.")]


@dataclass(frozen=True)
class BenchOptions:
    """Where the runs of a grid go, and what is written about them."""

    jobs: Jobs = 1
    engine: Annotated[str, Option(metavar="local|ray", help="Where runs go: this machine, or a Ray cluster.")] = "local"
    address: Address = None
    gpus_per_cell: Annotated[
        float | None, Option(metavar="SHARE", help="Share of a GPU that a run takes on a Ray cluster, as in 0.1.")
    ] = None
    out: Out = "runs"
    track: Track = None
    csv: Annotated[Path | None, Option(metavar="FILE", help="Write the tables as CSV, too.")] = None
    markdown: Annotated[Path | None, Option(metavar="FILE", help="Write the tables as Markdown, too.")] = None
    jsonl: Annotated[Path | None, Option(metavar="FILE", help="Write every run as a line of JSON, too.")] = None


@dataclass(frozen=True)
class TuneOptions:
    """What a tuning tries, and where the choice goes."""

    methods: Annotated[
        list[str] | None, Argument(metavar="METHOD...", help="As in tent sar:come; all methods if left out.")
    ] = None
    write: Annotated[Path, Option(metavar="FILE", help="The choice; rows of an earlier one stay.")] = Path("tuned.toml")
    rates: Annotated[str | None, Option(help="Learning rates to try for every method, in place of its own search.")] = (
        None
    )
    widen: Annotated[
        int, Option(min=0, max=3, help="How often a search whose choice lies at its edge is widened there.")
    ] = 0


@dataclass(frozen=True)
class BoardOptions:
    """What a leaderboard is made of, and where it goes."""

    methods: Annotated[
        list[str] | None, Argument(metavar="METHOD...", help="As in tent sar:come; all of --tuned if left out.")
    ] = None
    best: Annotated[int, Option(min=0, help="Methods that get all seeds and the longest stream.")] = 8
    streams: Annotated[
        str | None, Option(metavar="NAMES", help="Streams, separated by commas, or all; the standard ones if left out.")
    ] = None
    report: Annotated[Path, Option(help="Folder of table, page, figures and runs.")] = Path("leaderboard")
    cost: Annotated[bool, Option(help="Measure time and memory of a batch, after the runs.")] = True
    show: Annotated[
        list[Path] | None,
        Option(metavar="FOLDER", help="Run nothing: write what earlier leaderboards hold, as one; repeatable."),
    ] = None


@dataclass(frozen=True)
class AnalyzeOptions:
    """Which analysis is made, of what, and where it goes."""

    name: Annotated[str, Argument(metavar="NAME|list", help="Analysis; `list` shows all.")] = "list"
    jobs: Jobs = 1
    space: Annotated[str, Option(help="embeddings (of TestDG) or features (of any method).")] = "embeddings"
    runs: Annotated[Path, Option(help="Parent of the run folders.")] = Path("runs")
    out: Annotated[Path, Option(help="Folder of the numbers and the figure.")] = Path("analyses")
    figure: Annotated[
        Path | None, Option(metavar="FILE", help="The figure: .png, .pdf or .svg; OUT/NAME.png if left out.")
    ] = None


class Chosen(NamedTuple):
    """What was chosen about runs: values of a grid, and the settings of methods, as `--set` has them."""

    values: dict[str, Any]
    pairs: list[str]


Command = Callable[..., bool | None]
_KIND = inspect.Parameter.POSITIONAL_OR_KEYWORD
_SECOND = "second_"  # a second name of an option is an option of its own, which the help does not show


def with_choices(*left_out: str, several: bool = True, **defaults: str) -> Callable[[Command], Command]:
    """Give a command an option for every field of `RunSpec` that a user chooses, and `--set`; it gets them as `chosen`.

    If it takes `several` benchmarks, protocols or seeds, the help shows names in the plural; both are accepted.
    """
    options = []
    for key in (key for key in keys() if key not in left_out):
        names = [CHOICES[key].option]
        if several and key in keys("axis"):
            names = [f"{names[0]}s", *names]
        options.append(_parameter(key, names[0], defaults.get(key)))
        options += [_parameter(_SECOND + key, name, None, hidden=True) for name in names[1:]]
    options.append(inspect.Parameter("settings", _KIND, default=None, annotation=Settings))
    return lambda command: _spread(command, "chosen", options, _gather)


def _gather(given: dict[str, Any]) -> Chosen:
    """What was chosen, by whichever name."""
    pairs = given.pop("settings") or []
    seconds = {key.removeprefix(_SECOND): given.pop(key) for key in list(given) if key.startswith(_SECOND)}
    return Chosen(chosen({**given, **{key: value for key, value in seconds.items() if value is not None}}), pairs)


def with_options(name: str, kind: type) -> Callable[[Command], Command]:
    """Give a command an option for every field of a class; it gets a value of that class under a name."""
    options = list(inspect.signature(kind).parameters.values())
    return lambda command: _spread(command, name, options, lambda values: kind(**values))


def _spread(
    command: Command, name: str, options: list[inspect.Parameter], gather: Callable[[dict[str, Any]], Any]
) -> Command:
    """The command with options in place of one parameter, which gets all of them gathered."""

    def run(**given: Any) -> bool | None:
        return command(**{name: gather({option.name: given.pop(option.name) for option in options})}, **given)

    own = inspect.signature(command, eval_str=True).parameters
    parameters = sorted([*(own[key] for key in own if key != name), *options], key=_place)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _parameter(key: str, name: str, default: str | None, *, hidden: bool = False) -> inspect.Parameter:
    """The option of a field: text, except for switches and single numbers."""
    choice = CHOICES[key.removeprefix(_SECOND)]
    words = rule_of(choice.type)
    number = int if words.startswith("a whole number") else float if words.startswith("a number") else str
    kind: Any = bool if words == "true or false" else str if choice.many else number
    value, otherwise = (bool, False) if kind is bool else (kind | None, default)
    note = Option(name, metavar=choice.metavar, help=choice.help, hidden=hidden)
    return inspect.Parameter(key, _KIND, default=otherwise, annotation=Annotated[value, note])


def _place(parameter: inspect.Parameter) -> int:
    """Arguments first, then what is run and how it is set, then where it goes and how it is shown."""
    if parameter.default is inspect.Parameter.empty:  # not an option yet
        return -1
    kinds = [type(note).__name__ for note in getattr(parameter.annotation, "__metadata__", ())]
    if "ArgumentInfo" in kinds:
        return 0
    return 1 if parameter.name in keys() else {"settings": 2, "json": 4}.get(parameter.name, 3)


def ray_options(engine: str, **places: Any) -> dict[str, Any] | None:
    """What was asked of a Ray cluster; None where everything stays on this machine."""
    given = {key: value for key, value in places.items() if value is not None}
    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    if engine == "local" and given:
        option = next(iter(given)).replace("_", "-")
        raise UserError(f"--{option} is for a Ray cluster: add --engine ray, or leave it out", code="option-conflict")
    return given if engine == "ray" else None


def prepare_torch(*, bf16: bool) -> None:
    """Set what torch reads when it is imported; the user's own environment wins."""
    # Threads that wait by spinning take the cores from each other: beside another job, a run is many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if bf16:  # some virtual machines announce AMX and then kill the process that uses it: keep to plain AVX-512
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
