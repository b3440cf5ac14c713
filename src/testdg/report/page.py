"""The report: run folders as one page, with the same tables as Markdown, LaTeX and CSV, and the figures as files.

Everything is made first; then every file is put in its place in one step.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.files import write_files
from testdg.report.bench import INTERVAL, interval_text, table_record
from testdg.report.figures import FigureFiles, files_by_name, group_figures
from testdg.report.published import published
from testdg.report.record import Pairs
from testdg.report.runs import Runs, read_runs, row_key
from testdg.report.safe import csv_text, render
from testdg.report.table import Table
from testdg.report.tables import group_tables, published_table
from testdg.runs import Result, comparable, differences
from testdg.runs.compare import grouped, same_but_for_order
from testdg.runs.result import RUNS, to_line
from testdg.spec import SOURCE
from testdg.studies import BenchTable
from testdg.studies.rows import by_number, method_title, read_names, titled_rows
from testdg.studies.summary import make_table

TITLE = "Continual test-time adaptation"
PAGE = "report.html"
_LAST = "testdg"


@dataclass(frozen=True)
class Group:
    """A table of results that can be compared, with all that a report says about it."""

    title: str
    table: BenchTable
    apart: str = ""
    """Why it is not one with another group of the same benchmark and protocol."""
    number: int = 1

    @property
    def name(self) -> str:
        """For anchors and names of files."""
        return f"{self.number}-{re.sub(r'[^a-z0-9]+', '-', self.title.lower()).strip('-')[:60]}"

    @cached_property
    def sheets(self) -> list[Table]:
        return group_tables(self.table)

    @cached_property
    def published(self) -> list[Table]:
        """What papers published for the benchmark and the protocol."""
        return [published_table(one) for one in published(self.table.benchmark, self.table.protocol)]

    @cached_property
    def figures(self) -> list[FigureFiles]:
        return group_figures(self.table, self.sheets[1], self.name)

    @property
    def record(self) -> Pairs:
        """The record of the group."""
        pairs = table_record(self.table)
        if self.table.leaves_out:
            text = f"{len(self.table.streams)} streams, one for each domain that is left out"
            pairs.append(("runs", f"{text}; the first is described above"))
        return pairs

    @property
    def row_lines(self) -> list[tuple[str, list[str]]]:
        """The settings of each row, and its runs."""
        found = []
        for row in self.table.rows:
            settings = {**row.results[0].method["settings"]}
            settings.pop("seed", None)
            lines = [", ".join(f"{key} {value}" for key, value in settings.items()) or "no settings"]
            for result in row.results:
                score = self.table.mean(result)
                shown = "no score" if score is None else result.metric.show(score, more=1)
                lines.append(f"{result.folder.name}: seed {result.record['seed']}, {shown}")
            found.append((row.name, lines))
        return found

    @property
    def outcome(self) -> str:
        """The best row of a group in a sentence, next to Source."""
        table, metric = self.table, self.table.metric
        rows = [row for row in table.rows if table.whole(row)] or table.rows
        score_name = f"mean {metric.name}{' on what is left out' if table.leaves_out else ''}"
        best = (max if metric.higher else min)(rows, key=lambda row: table.score(row).value.mean)
        score, source = table.score(best), next((row for row in rows if row.method == SOURCE), None)
        if len(rows) == 1:
            return f"{best.name} has a {score_name} of {score.value.show(metric)}."
        equal = sum(table.score(row).value.mean == score.value.mean for row in rows) - 1
        who = f"{best.name} and {_counted(equal, 'other')} have" if equal else f"{best.name} has"
        among = f"Of {len(rows)} rows, " if len(rows) > len({row.method for row in rows}) else ""
        superlative = "highest" if metric.higher else "lowest"
        text = f"{among}{who} the {superlative} {score_name}, {score.value.show(metric)}"
        if source is None or best.method == SOURCE:
            return f"{text}." if source else f"{text}; Source was not run."
        text += f"; Source has {table.score(source).value.show(metric)}"
        if (gain := score.gain) is None:
            return f"{text}."
        interval = "" if gain.low is None else f" ({INTERVAL} {interval_text(gain, 1)})"
        return f"{text}, a gain of {gain.mean:.1f} points{interval}."


def make_groups(results: Sequence[Result]) -> list[Group]:
    """Put results that can be compared together; the order in which they come does not matter."""
    tables = [_table(group) for group in grouped(sorted(results, key=_place), _fits)]
    groups: list[Group] = []
    for table in tables:
        same = [one for one in tables if (one.benchmark, one.protocol) == (table.benchmark, table.protocol)]
        title, number, apart = f"{table.benchmark}, {table.protocol}", same.index(table), ""
        if number:
            found = differences(same[0].rows[0].results[0], table.rows[0].results[0])
            fields = ", ".join(key.replace("_", " ") for key in found)
            apart = f"Not comparable with {title} (1): other {fields}."
        title = title if len(same) == 1 else f"{title} ({number + 1})"
        groups.append(Group(title, table, apart, len(groups) + 1))
    return groups


def _place(result: Result) -> tuple[str | bool, ...]:
    """A sort key: the group of a result, then its row, Source first and TestDG last, then the run."""
    about = result.record
    method, rest = result.method["name"], dict(about)
    for key in ("seed", "tuning", "device"):
        rest.pop(key, None)
    group = (about["benchmark"], about["kind"], json.dumps(rest, sort_keys=True))
    row = (
        method != SOURCE,
        method == _LAST,
        method_title(method),
        by_number(json.dumps(result.method, sort_keys=True)),
    )
    return (*group, *row, json.dumps(about, sort_keys=True))


def _fits(first: Result, other: Result) -> bool:
    """Whether two results belong in one table; several orders of one protocol do."""
    same = _protocol_name(first) == _protocol_name(other)
    return comparable(first, other) or (same and same_but_for_order(first, other))


def _protocol_name(result: Result) -> str:
    """The protocol's name; `order-0` to `order-9` are one."""
    return re.sub(r"^order-\d$", "orders", result.record["kind"])


def _table(results: Sequence[Result]) -> BenchTable:
    several = len({result.stream for result in results}) > 1
    name = _protocol_name(results[0]) if several else results[0].record["kind"]
    rows: dict[str, list[Result]] = {}
    for result in results:
        rows.setdefault(row_key(result), []).append(result)
    ordered = sorted(rows.values(), key=lambda row: _place(row[0])[3:])
    return make_table(name, results[0].record, titled_rows(ordered))


class Report:
    """What a report holds. Everything is made at once, so its files fit together even if runs change later."""

    def __init__(self, title: str, runs: Runs) -> None:
        self.title, self.runs = title, runs
        self.groups: list[Group] = make_groups(runs.results)
        self.files = self._files()

    @property
    def contents(self) -> str:
        """How much a report holds, and what was left out."""
        methods = {row.method for group in self.groups for row in group.table.rows}
        sizes = (len(self.runs.results), "run"), (len(methods), "method"), (len(self.groups), "group")
        parts = ["{} of {} in {}".format(*(_counted(*size) for size in sizes))]
        parts[0] += " of results that can be compared" if len(self.groups) > 1 else ""
        if self.runs.unfinished:
            parts.append(f"{_counted(self.runs.unfinished, 'run')} not complete and left out")
        if self.runs.damaged:
            parts.append(f"{_counted(len(self.runs.damaged), 'run')} damaged and left out")
        if self.runs.copies:
            parts.append(f"{_counted(self.runs.copies, 'copy', 'copies')} of the same run left out")
        return "; ".join(parts) + "."

    @property
    def versions(self) -> str:
        """The versions that computed the results."""
        found: dict[str, set[str]] = {}
        rows = [row for group in self.groups for row in group.table.rows]
        for result in (result for row in rows for result in row.results):
            for name, version in result.versions.items():
                found.setdefault(name, set()).add(str(version))
        return ", ".join(f"{name} {' and '.join(sorted(versions))}" for name, versions in found.items())

    def _files(self) -> dict[str, bytes]:
        """The content of every file by its name."""
        texts = {name: render(name, title=self.title, report=self) for name in (PAGE, "report.md", "report.tex")}
        texts["report.csv"] = self._numbers()
        texts[RUNS] = "".join(to_line(result, read_names(result)) for result in self.runs.results)
        figures = files_by_name(figure for group in self.groups for figure in group.figures)
        return {name: text.encode() for name, text in texts.items()} | figures

    def _numbers(self) -> str:
        """A line for each number of ours, with all digits; what papers published is not among them."""
        about = ["group", "benchmark", "protocol", "table", "method", "round", "column"]
        rows: list[list[Any]] = [[*about, "mean", "deviation", "low", "high"]]
        for group, sheet in ((one, sheet) for one in self.groups for sheet in one.sheets):
            names = [group.title, group.table.benchmark, group.table.protocol, sheet.title]
            for name, entries in sheet.rows:
                for column, entry in zip(sheet.columns, entries, strict=True):
                    if entry.value is not None:
                        place = [*names, name, column.over, column.title]
                        rows.append([*place, entry.value, entry.deviation, entry.low, entry.high])
        return csv_text(rows)


def make_report(paths: Sequence[str | Path], title: str = TITLE) -> Report:
    """Read the runs in some folders and make the page, the tables and the figures."""
    return Report(title, read_runs([Path(path) for path in paths]))


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


def _counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"
