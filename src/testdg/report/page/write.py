"""Writing a report: everything is made first, then every file is put in its place in one step."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testdg.errors import UserError
from testdg.files import write_files
from testdg.report.page.chapter import Content, make_chapter
from testdg.report.page.figures import picture_files
from testdg.report.page.groups import make_groups
from testdg.report.page.html import html_page
from testdg.report.page.runs import read_runs
from testdg.report.page.texts import latex_text, markdown_text, numbers_csv
from testdg.runs.stored import RUNS, to_line
from testdg.studies.rows import read_names

TITLE = "Continual test-time adaptation"
PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """What a report holds, and its files by name."""

    content: Content
    files: dict[str, bytes]


def make_report(paths: Sequence[str | Path], title: str = TITLE) -> Report:
    """Read the runs in some folders and make the page, the tables and the figures."""
    runs = read_runs([Path(path) for path in paths])
    chapters = [make_chapter(group, number) for number, group in enumerate(make_groups(runs.results), 1)]
    content = Content(title, runs, chapters)
    makers = {PAGE: html_page, "report.md": markdown_text, "report.tex": latex_text, "report.csv": numbers_csv}
    files = {name: make(content).encode() for name, make in makers.items()}
    files[RUNS] = "".join(to_line(result, read_names(result)) for result in runs.results).encode()
    return Report(content, files | picture_files(picture for chapter in chapters for picture in chapter.pictures))


def check_folder(path: Path, option: str) -> None:
    """Refuse a file where a folder is needed, before anything is computed."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file: choose a folder with {option}")


def write_report(paths: Sequence[str | Path], out: str | Path, title: str = TITLE) -> Report:
    """Make a report and write it into a folder; files of an earlier one are replaced."""
    folder = Path(out)
    check_folder(folder, "--out")
    report = make_report(paths, title)
    write_files(folder, report.files)
    return report
