"""Options that commands share, most of them derived from `RunSpec`, and the environment of torch."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument, Option

from testdg.errors import UserError, unknown
from testdg.schema import rule_of
from testdg.spec import CHOICES, chosen, keys

Json = Annotated[bool, Option("--json", help="Print JSON, and nothing else, on stdout.")]
Settings = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Setting of a method; METHOD.KEY=VALUE for several methods; repeatable."),
]
MODEL_HELP = "Model: a folder, a hub id, a timm name, or the name of a model in a --plugin."
PictureMethod = Annotated[str | None, Option(help="Method; see `testdg methods` (testdg_aligned).")]
Classes = Annotated[
    Path | None, Option(metavar="FILE", help="Names of the classes, one per line; the model's if left out.")
]
Device = Annotated[str, Option(help=CHOICES["device"].help)]
Subset = Annotated[str | None, Option(metavar="WHICH", help=CHOICES["subset"].help)]
Jobs = Annotated[int, Option(help="Parallel runs, one process each; with Ray, runs that share a GPU.")]
Address = Annotated[
    str | None, Option(metavar="HOST:PORT", help="Ray cluster; if left out, RAY_ADDRESS or a new one on this machine.")
]
Cpus = Annotated[
    float | None, Option(metavar="SHARE", help="Cores per stream on a Ray cluster; may be a fraction (1).")
]
Gpus = Annotated[
    float | None, Option(metavar="SHARE", help="GPUs per stream on a Ray cluster; may be a fraction, such as 0.1.")
]
Out = Annotated[str, Option(metavar="FOLDER|URL", help="Parent of the run folders; s3://... for complete runs.")]
Track = Annotated[
    str | None, Option(metavar="tensorboard", help="Also log the numbers of every batch to this program.")
]


@dataclass(frozen=True)
class BenchOptions:
    """Where the runs of a grid are computed and stored, and which tables are written."""

    jobs: Jobs = 1
    engine: Annotated[
        str, Option(metavar="local|ray", help="Where runs are computed: on this machine, or on a Ray cluster.")
    ] = "local"
    address: Address = None
    gpus_per_cell: Annotated[
        float | None, Option(metavar="SHARE", help="GPUs per run on a Ray cluster; may be a fraction, such as 0.1.")
    ] = None
    out: Out = "runs"
    track: Track = None
    csv: Annotated[Path | None, Option(metavar="FILE", help="Also write the tables as CSV.")] = None
    markdown: Annotated[Path | None, Option(metavar="FILE", help="Also write the tables as Markdown.")] = None
    jsonl: Annotated[Path | None, Option(metavar="FILE", help="Also write every run as a line of JSON.")] = None


@dataclass(frozen=True)
class TuneOptions:
    """What a tuning searches, and the file for the chosen settings."""

    methods: Annotated[
        list[str] | None, Argument(metavar="METHOD...", help="Such as tent sar:come; all methods if left out.")
    ] = None
    write: Annotated[Path, Option(metavar="FILE", help="File for the choices; keeps rows of other methods.")] = Path(
        "tuned.toml"
    )
    rates: Annotated[str | None, Option(help="Learning rates to try for every method, in place of its own search.")] = (
        None
    )
    widen: Annotated[
        int, Option(min=0, max=3, help="How many times to widen a search whose best value is at an edge.")
    ] = 0


@dataclass(frozen=True)
class BoardOptions:
    """The runs of a leaderboard, and its folder."""

    methods: Annotated[
        list[str] | None, Argument(metavar="METHOD...", help="Such as tent sar:come; all in --tuned if left out.")
    ] = None
    best: Annotated[int, Option(min=0, help="How many methods run with all seeds and on the longest stream.")] = 8
    streams: Annotated[
        str | None, Option(metavar="NAMES", help="Streams, separated by commas, or all; the standard ones if left out.")
    ] = None
    report: Annotated[Path, Option(help="Folder of the table, the page, the figures and the runs.")] = Path(
        "leaderboard"
    )
    cost: Annotated[bool, Option(help="Measure time and memory of a batch, after the runs.")] = True
    show: Annotated[
        list[Path] | None,
        Option(metavar="FOLDER", help="Run nothing: merge the runs of earlier leaderboards into one; repeatable."),
    ] = None


@dataclass(frozen=True)
class AnalyzeOptions:
    """An analysis, its runs and its files."""

    name: Annotated[str, Argument(metavar="NAME|list", help="Analysis; `list` shows all.")] = "list"
    jobs: Jobs = 1
    space: Annotated[str, Option(help="embeddings (of TestDG) or features (of any method).")] = "embeddings"
    runs: Annotated[Path, Option(help="Parent of the run folders.")] = Path("runs")
    out: Annotated[Path, Option(help="Folder of the numbers and the figure.")] = Path("analyses")
    figure: Annotated[
        Path | None, Option(metavar="FILE", help="The figure: .png, .pdf or .svg; OUT/NAME.png if left out.")
    ] = None


class RunChoices(NamedTuple):
    """What a user chose about runs: values of a grid, and the texts of `--set`."""

    values: dict[str, Any]
    pairs: list[str]


Command = Callable[..., bool | None]
_KIND = inspect.Parameter.POSITIONAL_OR_KEYWORD
_SECOND = "second_"  # prefix of a second option, hidden in the help, for the other name of a choice


def with_choices(*left_out: str, several: bool = True, **defaults: str) -> Callable[[Command], Command]:
    """Give a command an option for every choice of `RunSpec`, and `--set`; it receives them as `chosen`.

    Typer makes one option per parameter of a function. The decorator therefore returns a function whose signature is
    written by hand: `chosen` is replaced by all choices, and a parameter whose type is a dataclass by its fields. When
    it is called, it puts the values together again. So a choice is declared once, in `RunSpec`, for all commands.

    With `several`, the help shows --benchmarks, --protocols and so on; the singular is accepted, too.
    """
    choices = []
    for key in (key for key in keys() if key not in left_out):
        names = [CHOICES[key].option]
        if several and key in keys("axis"):
            names = [f"{names[0]}s", *names]
        choices.append(_parameter(key, names[0], defaults.get(key)))
        choices += [_parameter(_SECOND + key, name, None, hidden=True) for name in names[1:]]

    def decorate(command: Command) -> Command:
        own = dict(inspect.signature(command, eval_str=True).parameters)
        del own["chosen"]
        groups = {name: own.pop(name).annotation for name in [*own] if is_dataclass(own[name].annotation)}
        fields = {name: inspect.signature(group).parameters for name, group in groups.items()}

        def run(settings: list[str] | None, **given: Any) -> bool | None:
            values = {option.name: given.pop(option.name) for option in choices}
            for key in [key for key in values if key.startswith(_SECOND)]:
                if (second := values.pop(key)) is not None:
                    values[key.removeprefix(_SECOND)] = second
            for name, group in groups.items():
                given[name] = group(**{field: given.pop(field) for field in fields[name]})
            return command(chosen=RunChoices(chosen(values), settings or []), **given)

        pairs = inspect.Parameter("settings", _KIND, default=None, annotation=Settings)
        of_groups = [option for options in fields.values() for option in options.values()]
        parameters = sorted([*own.values(), *of_groups, *choices, pairs], key=_place)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _parameter(key: str, name: str, default: str | None, *, hidden: bool = False) -> inspect.Parameter:
    """The option of a field. Its type is a text, except for switches and single numbers."""
    choice = CHOICES[key.removeprefix(_SECOND)]
    words = rule_of(choice.type)
    number = int if words.startswith("a whole number") else float if words.startswith("a number") else str
    kind: Any = bool if words == "true or false" else str if choice.many else number
    value, otherwise = (bool, False) if kind is bool else (kind | None, default)
    note = Option(name, metavar=choice.metavar, help=choice.help, hidden=hidden)
    return inspect.Parameter(key, _KIND, default=otherwise, annotation=Annotated[value, note])


def _place(parameter: inspect.Parameter) -> int:
    """Order of parameters: arguments, choices of runs, settings, files, JSON."""
    kinds = [type(note).__name__ for note in getattr(parameter.annotation, "__metadata__", ())]
    if "ArgumentInfo" in kinds:
        return 0
    return 1 if parameter.name in keys() else {"settings": 2, "json": 4}.get(parameter.name, 3)


def uses_ray(engine: str, **options: object) -> bool:
    """Whether runs are computed on a Ray cluster; `options` are those that have a meaning only there."""
    given = [key for key, value in options.items() if value is not None]
    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    if engine == "local" and given:
        option = given[0].replace("_", "-")
        raise UserError(f"--{option} needs a Ray cluster: add --engine ray, or leave it out", code="option-conflict")
    return engine == "ray"


def prepare_torch(*, bf16: bool) -> None:
    """Set the variables that torch reads when it is imported, unless the user has set them."""
    # Threads that spin while they wait occupy the cores of other jobs: two runs side by side become many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if bf16:  # some virtual machines report AMX but kill a process that uses it: limit to AVX-512
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
