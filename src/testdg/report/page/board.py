"""The leaderboard as a page that sorts itself, with every stream below it."""

from collections.abc import Sequence

from testdg.experiments import BenchTable
from testdg.experiments.board_cost import Costs
from testdg.experiments.leaderboard import Board
from testdg.report.bench import means_table, table_record
from testdg.report.board import TITLE, board_table, outcome
from testdg.report.page.figures import Picture
from testdg.report.page.html import THEME, html_figure, html_table, whole_page
from testdg.report.safe import escape


def board_page(board: Board, costs: Costs, pictures: Sequence[Picture]) -> str:
    """The whole page."""
    header = ["<header>", THEME, f"<h1>{escape(TITLE)}</h1>", f"<p>{escape(outcome(board))}</p>", "</header>"]
    lead = ["<section>", html_table(board_table(board, costs)), *map(html_figure, pictures), "</section>"]
    return whole_page(TITLE, [*header, "<main>", *lead, *map(_section, board.tables.values()), "</main>"])


def _section(table: BenchTable) -> str:
    lines = "".join(f"<dd>{escape(line)}</dd>" for text in table_record(table) for line in text.split("\n"))
    record = f"<details><summary>Record</summary><dl>{lines}</dl></details>"
    return f"<section><h2>{escape(table.protocol)}</h2>{html_table(means_table(table))}{record}</section>"
