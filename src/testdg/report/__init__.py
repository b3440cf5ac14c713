"""Reports: tables and figures from results and run folders."""

from testdg.report.figure import draw_stream
from testdg.report.table import Row, make_rows, plain_table, rich_table

__all__ = ["Row", "draw_stream", "make_rows", "plain_table", "rich_table"]
