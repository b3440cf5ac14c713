"""What commands share: options, most of them of runs, and what torch must know before it is imported."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from testdg.choices import CHOICES, Choice, chosen

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
Out = Annotated[str, typer.Option(metavar="FOLDER|URL", help="Parent of the run folders; s3://... for complete runs.")]
Track = Annotated[str | None, typer.Option(metavar="tensorboard", help="Write the numbers of every batch for it, too.")]
Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as CSV, too.")]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown, too.")]


def with_choices(*left_out: str, **defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every choice about a run; it gets what was chosen as `values`."""
    keys = [key for key in CHOICES if key not in left_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**options: Any) -> None:
            values = chosen({key: options.pop(key) for key in keys})
            command(values=values, **options)

        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "values"]
        parameters = [*own, *(_parameter(key, CHOICES[key], defaults.get(key)) for key in keys)]
        run.__signature__ = inspect.Signature(sorted(parameters, key=_place))  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _parameter(key: str, choice: Choice, default: str | None) -> inspect.Parameter:
    """The option of a choice."""
    names = [f"--{key.removesuffix('s') if choice.plural else key}".replace("_", "-")]
    names += [f"{names[0]}s"] if choice.plural else []
    kind, otherwise = (bool, False) if choice.type is bool else (choice.type | None, default)
    about = typer.Option(*names, metavar=choice.metavar, help=choice.help)
    return inspect.Parameter(
        key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=otherwise, annotation=Annotated[kind, about]
    )


def _place(parameter: inspect.Parameter) -> int:
    """Arguments first, then what is run, then where it goes and how it is shown."""
    kinds = [type(note).__name__ for note in getattr(parameter.annotation, "__metadata__", ())]
    return 0 if "ArgumentInfo" in kinds else 1 if parameter.name in CHOICES else 2


def prepare_torch(*, bf16: bool) -> None:
    """Set what torch reads when it is imported; the user's own environment wins."""
    # Threads that wait by spinning take the cores from each other: beside another job, a run is many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if bf16:  # some virtual machines announce AMX and then kill the process that uses it: keep to plain AVX-512
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
