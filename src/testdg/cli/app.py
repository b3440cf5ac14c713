"""Commands and exit codes."""

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import testdg
from testdg.cli import commands
from testdg.cli.options import prepare_torch
from testdg.errors import UserError, visible
from testdg.registry import add_plugin

INTERRUPTED = 130


class UntypedSwitches:
    """Help texts without a type for switches, which take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Command(UntypedSwitches, TyperCommand): ...


class CommandGroup(UntypedSwitches, TyperGroup): ...


app = typer.Typer(
    name="testdg",
    help="Continual test-time adaptation of vision models.",
    invoke_without_command=True,
    cls=CommandGroup,
    pretty_exceptions_enable=False,
)


def execute(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code; plugins may be named anywhere on the line."""
    words, others = list(sys.argv[1:] if arguments is None else arguments), []
    try:
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
        code = app(args=others, prog_name="testdg", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, Exception) as error:
        return _exit_code(error)
    if isinstance(code, bool):  # whether there was no failure
        return int(not code)
    return _exit_code(KeyboardInterrupt()) if code == INTERRUPTED else code or 0


def _exit_code(error: BaseException) -> int:
    """The exit code of an error, of which a mistake of the user is one sentence on stderr."""
    code, sentence = 2, str(error)
    if isinstance(error, BrokenPipeError):
        return _drop_output()
    if isinstance(error, OSError):
        where = "standard output" if error.filename is None else error.filename
        sentence = f"{where}: {error.strerror or error}"
        _drop_output()
    elif isinstance(error, KeyboardInterrupt | typer.Abort):
        code, sentence = INTERRUPTED, "interrupted; the same command resumes from the last saved state"
    elif hasattr(error, "format_message"):  # typer's errors about wrong usage
        sentence = error.format_message()
    elif not isinstance(error, UserError):
        raise error
    print(f"testdg: {visible(' '.join(sentence.split()))}", file=sys.stderr)
    return code


def _drop_output() -> int:
    """Discard buffered output, so that Python does not complain at exit; returns 1, the exit code of other tools."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py", help="Code of yours with methods, benchmarks or models; it is run. Repeatable."
        ),
    ] = None,
) -> None:
    """Continual test-time adaptation of vision models."""
    if version:
        typer.echo(f"testdg {testdg.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


for command in (
    commands.adapt,
    commands.serve,
    commands.run,
    commands.bench,
    commands.tune,
    commands.leaderboard,
    commands.ablate,
    commands.analyze,
    commands.report,
    commands.methods,
    commands.check_method,
    commands.benchmarks,
    commands.corrupt,
    commands.train,
    commands.convert,
):
    app.command(cls=Command)(command)
