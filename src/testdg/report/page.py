"""The report: run folders as one page, with the same tables as Markdown, LaTeX and CSV, and the figures as files.

Everything is made first; then every file is put in its place in one step.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.files import write_files
from testdg.report.bench import INTERVAL, interval_text, table_record
from testdg.report.figures import Picture, group_pictures, picture_files
from testdg.report.published import published
from testdg.report.record import Pairs
from testdg.report.runs import Group, Runs, make_groups, read_runs
from testdg.report.safe import csv_text, render
from testdg.report.table import Table
from testdg.report.tables import group_sheets, published_sheet
from testdg.runs.stored import RUNS, to_line
from testdg.studies.grid import SOURCE
from testdg.studies.rows import read_names

TITLE = "Continual test-time adaptation"
PAGE = "report.html"


@dataclass(frozen=True)
class Chapter(Group):
    """What a report says about a group."""

    name: str = ""
    """Stands in anchors and in the names of files."""
    sheets: Sequence[Table] = ()
    published: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()

    @property
    def outcome(self) -> str:
        return outcome(self)

    @property
    def record(self) -> Pairs:
        """The record of the group."""
        pairs = table_record(self.table)
        if self.table.leaves_out:
            count = len(self.table.streams)
            pairs.append(
                ("runs", f"{count} streams, one for each domain that is left out; the first is described above")
            )
        return pairs

    @property
    def runs(self) -> list[tuple[str, list[str]]]:
        """The settings of each row, and its runs."""
        found = []
        for row in self.table.rows:
            settings = row.results[0].method["settings"]
            lines = [", ".join(f"{key} {value}" for key, value in settings.items() if key != "seed") or "no settings"]
            for result in row.results:
                score = self.table.mean(result)
                shown = "no score" if score is None else result.metric.show(score, more=1)
                lines.append(f"{result.folder.name}: seed {result.record['seed']}, {shown}")
            found.append((row.name, lines))
        return found


@dataclass(frozen=True)
class Report:
    """What a report holds."""

    title: str
    read: Runs
    chapters: Sequence[Chapter]

    @property
    def contents(self) -> str:
        return contents(self.chapters, self.read)

    @property
    def versions(self) -> str:
        """The versions that computed the results."""
        found = [result.versions for one in self.chapters for row in one.table.rows for result in row.results]
        names = dict.fromkeys(name for one in found for name in one)
        return ", ".join(f"{n} {' and '.join(sorted({str(one[n]) for one in found if n in one}))}" for n in names)

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The content of every file by its name."""
        texts = {name: render(name, title=self.title, report=self) for name in (PAGE, "report.md", "report.tex")}
        texts["report.csv"] = self._numbers()
        texts[RUNS] = "".join(to_line(result, read_names(result)) for result in self.read.results)
        pictures = picture_files(picture for chapter in self.chapters for picture in chapter.pictures)
        return {name: text.encode() for name, text in texts.items()} | pictures

    def _numbers(self) -> str:
        """A line for each number of ours, with all digits; what papers published is not among them."""
        about = ["group", "benchmark", "protocol", "table", "method", "round", "column"]
        rows: list[list[Any]] = [[*about, "mean", "deviation", "low", "high"]]
        for chapter, sheet in ((one, sheet) for one in self.chapters for sheet in one.sheets):
            names = [chapter.title, chapter.table.benchmark, chapter.table.protocol, sheet.title]
            for name, entries in sheet.rows:
                for column, entry in zip(sheet.columns, entries, strict=True):
                    if entry.value is not None:
                        place = [*names, name, column.over, column.title]
                        rows.append([*place, entry.value, entry.deviation, entry.low, entry.high])
        return csv_text(rows)


def make_report(paths: Sequence[str | Path], title: str = TITLE) -> Report:
    """Read the runs in some folders and make the page, the tables and the figures."""
    read, chapters = read_runs([Path(path) for path in paths]), []
    for number, group in enumerate(make_groups(read.results), 1):
        name = f"{number}-{re.sub(r'[^a-z0-9]+', '-', group.title.lower()).strip('-')[:60]}"
        sheets = group_sheets(group.table)
        theirs = [published_sheet(one) for one in published(group.table.benchmark, group.table.protocol)]
        pictures = group_pictures(group.table, sheets[1], name)
        chapters.append(Chapter(group.title, group.table, group.apart, name, sheets, theirs, pictures))
    return Report(title, read, chapters)


def check_folder(path: Path, option: str) -> None:
    """Refuse a file where a folder is needed, before anything is computed."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file: choose a folder with {option}", code="not-a-folder")


def write_report(paths: Sequence[str | Path], out: str | Path, title: str = TITLE) -> Report:
    """Make a report and write it into a folder; files of an earlier one are replaced."""
    folder = Path(out)
    check_folder(folder, "--out")
    report = make_report(paths, title)
    write_files(folder, report.files)
    return report


# In words


def contents(groups: Sequence[Group], read: Runs) -> str:
    """How much a report holds, and what was left out."""
    methods = len({row.method for group in groups for row in group.table.rows})
    counts = (
        f"{_counted(len(read.results), 'run')} of {_counted(methods, 'method')} in {_counted(len(groups), 'group')}"
    )
    parts = [counts + (" of results that can be compared" if len(groups) > 1 else "")]
    if read.unfinished:
        parts.append(f"{_counted(read.unfinished, 'run')} not complete and left out")
    if read.damaged:
        parts.append(f"{_counted(len(read.damaged), 'run')} damaged and left out")
    if read.copies:
        parts.append(f"{_counted(read.copies, 'copy', 'copies')} of the same run left out")
    return "; ".join(parts) + "."


def outcome(group: Group) -> str:
    """The best row of a group in a sentence, next to Source."""
    table, metric = group.table, group.table.metric
    rows = [row for row in table.rows if table.whole(row)] or table.rows
    score_name = f"mean {metric.name}{' on what is left out' if table.leaves_out else ''}"
    best = (max if metric.higher else min)(rows, key=lambda row: table.score(row).value.mean)
    score, source = table.score(best), next((row for row in rows if row.method == SOURCE), None)
    if len(rows) == 1:
        return f"{best.name} has a {score_name} of {score.value.show(metric)}."
    equal = sum(table.score(row).value.mean == score.value.mean for row in rows) - 1
    who = f"{best.name} and {_counted(equal, 'other')} have" if equal else f"{best.name} has"
    among = f"Of {len(rows)} rows, " if len(rows) > len({row.method for row in rows}) else ""
    text = f"{among}{who} the {'highest' if metric.higher else 'lowest'} {score_name}, {score.value.show(metric)}"
    if source is None or best.method == SOURCE:
        return f"{text}." if source else f"{text}; Source was not run."
    text += f"; Source has {table.score(source).value.show(metric)}"
    if (gain := score.gain) is None:
        return f"{text}."
    interval = "" if gain.low is None else f" ({INTERVAL} {interval_text(gain, 1)})"
    return f"{text}, a gain of {gain.mean:.1f} points{interval}."


def _counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"
