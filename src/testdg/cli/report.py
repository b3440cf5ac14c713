"""`testdg report`: run folders as a page, tables and figures."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from testdg.errors import visible
from testdg.report.page import PAGE, TITLE, write_report
from testdg.report.runs import few


def report_command(runs: Sequence[Path], out: Path, title: str | None, *, as_json: bool) -> None:
    """Write the report and print what is in it."""
    report = write_report(runs, out, title or TITLE)
    if as_json:
        plain = {
            "page": str(out / PAGE),
            "files": [str(out / name) for name in report.files],
            "groups": [{"title": group.title, **group.table.to_dict()} for group in report.groups],
            "unfinished": report.runs.unfinished,
            "copies": report.runs.copies,
            "damaged": report.runs.damaged,
        }
        print(json.dumps(plain, indent=2))
        return
    for sentence in few(report.runs.damaged):
        print(f"left out: {visible(sentence)}", file=sys.stderr)
    for group in report.groups:
        print(f"{group.title}: {group.outcome}")
    print(f"\n{report.contents}\npage    {out / PAGE}\nfiles   {len(report.files)} in {out}")
