"""Commands and exit codes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import testdg
from testdg.errors import UserError

DEFAULT_METHOD = "testdg"
INTERRUPTED = 130

app = typer.Typer(
    name="testdg",
    help="Continual test-time adaptation of vision models.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def execute(arguments: list[str] | None = None) -> int:
    """Run a command; mistakes of the user become one sentence on stderr."""
    try:
        code = app(args=arguments, prog_name="testdg", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        return _complain(str(error), 2)
    except BrokenPipeError:
        return _drop_output()
    except OSError as error:
        where = "standard output" if error.filename is None else error.filename
        _drop_output()
        return _complain(f"{where}: {error.strerror or error}", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer raises for wrong usage has one
            raise
        return _complain(error.format_message(), 2)
    if code == INTERRUPTED:
        return _complain("interrupted; the same command goes on from the last saved state", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _complain(sentence: str, code: int) -> int:
    print(f"testdg: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _drop_output() -> int:
    """Send what is still unwritten nowhere, so that Python does not complain at its end; 1, as other tools give."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"testdg {testdg.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Continual test-time adaptation of vision models."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _prepare_torch(*, bf16: bool) -> None:
    """Set what torch reads when it is imported; the user's own environment wins."""
    # Threads that wait by spinning take the cores from each other: beside another job, a run is many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if bf16:  # some virtual machines announce AMX and then kill the process that uses it: keep to plain AVX-512
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


@app.command()
def run(
    benchmark: Annotated[str, typer.Option(help="Benchmark; see `testdg benchmarks`.")] = "digits-c",
    method: Annotated[str, typer.Option(help="Method; see `testdg methods`.")] = DEFAULT_METHOD,
    model: Annotated[
        str | None, typer.Option(help="Model: a folder or a hub id; the benchmark's own if left out.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the benchmark's data.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of the method; repeatable.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Published settings of a benchmark, see `testdg methods METHOD`, or none; an embedded benchmark "
            "applies its own if left out.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the method's random numbers.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    batch_size: Annotated[int | None, typer.Option(help="Images per batch; the benchmark's own if left out.")] = None,
    protocol: Annotated[
        str, typer.Option(help="continual, or held-out (the last five domains only test).")
    ] = "continual",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    images: Annotated[int | None, typer.Option(help="First images of each domain; all if left out.")] = None,
    severity: Annotated[int, typer.Option(help="Severity of the corruptions, 1 to 5.")] = 5,
    domains: Annotated[str | None, typer.Option(help="Domains in order, separated by commas.")] = None,
    out: Annotated[Path, typer.Option(help="Parent of the run folders.")] = Path("runs"),
    json: Json = False,
) -> None:
    """Adapt a model to a stream and show the error on every domain, beside the source model's."""
    _prepare_torch(bf16="bf16" in (precision, *(pair.removeprefix("precision=") for pair in settings or [])))
    from testdg.cli.run import Request, run_command

    request = Request(
        benchmark=benchmark,
        method=method,
        model=model,
        data=data,
        pairs=settings or [],
        preset=preset,
        seed=seed,
        device=device,
        batch_size=batch_size,
        protocol=protocol,
        precision=precision,
        images=images,
        severity=severity,
        domains=domains,
        out=out,
    )
    run_command(request, as_json=json)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method's settings.")] = None, json: Json = False
) -> None:
    """List the methods, or the settings of one."""
    from testdg.cli.listing import list_methods, show_method

    if name is None:
        list_methods(json)
    else:
        show_method(name, json)


@app.command()
def benchmarks(json: Json = False) -> None:
    """List the benchmarks."""
    from testdg.cli.listing import list_benchmarks

    list_benchmarks(json)
