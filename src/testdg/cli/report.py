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
            "groups": [{"title": chapter.title, **chapter.table.to_dict()} for chapter in report.chapters],
            "unfinished": report.read.unfinished,
            "copies": report.read.copies,
            "damaged": report.read.damaged,
        }
        print(json.dumps(plain, indent=2))
        return
    for sentence in few(report.read.damaged):
        print(f"left out: {visible(sentence)}", file=sys.stderr)
    for chapter in report.chapters:
        print(f"{chapter.title}: {chapter.outcome}")
    print(f"\n{report.contents}\npage    {out / PAGE}\nfiles   {len(report.files)} in {out}")
