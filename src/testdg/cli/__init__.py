"""The command line: thin, and quick to answer."""


def main() -> None:
    """Run the command line and exit with 0 (success), 2 (a mistake of the user), 130 (interrupted) or 1 (all else)."""
    from testdg.cli.app import execute

    raise SystemExit(execute())
