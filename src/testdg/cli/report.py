"""`testdg report`: run folders as a page, tables and figures."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from testdg.errors import visible
from testdg.report.page import write_report
from testdg.report.page.runs import few
from testdg.report.page.words import contents, outcome
from testdg.report.page.write import PAGE, TITLE


def report_command(runs: Sequence[Path], out: Path, title: str | None, *, as_json: bool) -> None:
    """Write the report and say what is in it."""
    report = write_report(runs, out, title or TITLE)
    content = report.content
    if as_json:
        plain = {
            "page": str(out / PAGE),
            "files": [str(out / name) for name in report.files],
            "groups": [{"title": group.title, **group.table.to_dict()} for group in content.groups],
            "unfinished": content.runs.unfinished,
            "copies": content.runs.copies,
            "damaged": content.runs.damaged,
        }
        print(json.dumps(plain, indent=2))
        return
    for told in few(content.runs.damaged):
        print(f"left out: {visible(told)}", file=sys.stderr)
    for chapter in content.chapters:
        print(f"{chapter.group.title}: {outcome(chapter.group)}")
    print(f"\n{contents(content.groups, content.runs)}\npage    {out / PAGE}\nfiles   {len(report.files)} in {out}")
