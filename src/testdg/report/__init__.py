"""Reports: tables and figures from results and run folders."""

from testdg.report.figures import draw_stream
from testdg.report.table import Table, plain_table, rich_table
from testdg.report.tables import orders_table, result_tables, visit_table

__all__ = ["Table", "draw_stream", "orders_table", "plain_table", "result_tables", "rich_table", "visit_table"]
