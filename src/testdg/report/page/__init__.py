"""The report: run folders as one page, with the same tables as Markdown, LaTeX and CSV, and the figures as files."""

from testdg.report.page.groups import Group, make_groups
from testdg.report.page.runs import read_runs
from testdg.report.page.write import Report, make_report, write_report

__all__ = ["Group", "Report", "make_groups", "make_report", "read_runs", "write_report"]
