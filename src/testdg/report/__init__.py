"""Reports: tables and figures from results and run folders."""

from testdg.report.figure import draw_stream
from testdg.report.table import Row, Table, plain_table, rich_table
from testdg.report.tables import error_table, orders_table, result_tables

__all__ = ["Row", "Table", "draw_stream", "error_table", "orders_table", "plain_table", "result_tables", "rich_table"]
