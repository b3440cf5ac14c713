"""Commands and exit codes."""

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import testdg
from testdg.cli import data_commands, experiment_commands, stream_commands
from testdg.cli.options import prepare_torch
from testdg.errors import UserError, visible
from testdg.registry import add_plugin

INTERRUPTED = 130


class Plain:
    """What shows a switch without a type: it takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of a command, `--help` among them."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Command(Plain, TyperCommand):
    """A command."""


class Commands(Plain, TyperGroup):
    """The command with all the others in it."""


app = typer.Typer(
    name="testdg",
    help="Continual test-time adaptation of vision models.",
    invoke_without_command=True,
    cls=Commands,
    pretty_exceptions_enable=False,
)


def execute(arguments: list[str] | None = None) -> int:
    """Run a command; mistakes of the user become one sentence on stderr."""
    try:
        code = app(args=_add_plugins(arguments), prog_name="testdg", standalone_mode=False)
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
    if isinstance(code, bool):  # whether all went well
        return int(not code)
    return code or 0


def _add_plugins(arguments: list[str] | None) -> list[str]:
    """Load the plugins that are named anywhere on the line; the other words are left."""
    words, others = list(sys.argv[1:] if arguments is None else arguments), []
    while words:
        word = words.pop(0)
        name, equals, file = word.partition("=")
        if name != "--plugin":
            others.append(word)
        elif equals or words:
            prepare_torch(bf16=False)  # a plugin imports torch before its command does
            add_plugin(file if equals else words.pop(0))
        else:
            raise UserError("--plugin takes a Python file, as in --plugin my_method.py", code="wrong-option")
    return others


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
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py", help="Code of yours with methods, benchmarks or models; it is run. Repeatable."
        ),
    ] = None,
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
    experiment_commands.tune,
    experiment_commands.leaderboard,
    experiment_commands.ablate,
    experiment_commands.analyze,
    experiment_commands.report,
    data_commands.methods,
    data_commands.check_method,
    data_commands.benchmarks,
    data_commands.corrupt,
    data_commands.train,
    data_commands.convert,
):
    app.command(cls=Command)(command)
