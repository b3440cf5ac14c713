"""Commands and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import testdg
from testdg.cli import data_commands, experiment_commands, stream_commands
from testdg.errors import UserError, visible

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
    print(f"testdg: {visible(' '.join(sentence.split()))}", file=sys.stderr)
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


for command in (
    stream_commands.adapt,
    stream_commands.serve,
    experiment_commands.run,
    experiment_commands.bench,
    experiment_commands.ablate,
    experiment_commands.analyze,
    experiment_commands.report,
    data_commands.methods,
    data_commands.benchmarks,
    data_commands.corrupt,
    data_commands.train,
):
    app.command()(command)
