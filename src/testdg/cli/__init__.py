"""The command line: thin, and quick to answer."""


def main() -> None:
    """Run the command line and exit with 0 (fine), 2 (the user's mistake), 130 (interrupted) or 1 (ours)."""
    from testdg.cli.app import execute

    raise SystemExit(execute())
