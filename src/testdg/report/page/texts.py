"""The tables of a report as Markdown, LaTeX and CSV."""

from itertools import accumulate
from typing import Any

from testdg.errors import visible
from testdg.report.page.chapter import Chapter, Content
from testdg.report.page.words import contents, outcome, record_pairs, versions
from testdg.report.safe import csv_text, markdown
from testdg.report.table import Column, Shown, Table, markdown_table

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "^": r"\textasciicircum{}",
    "_": r"\_", "~": r"\textasciitilde{}", "%": r"\%", "±": r"$\pm$", "<": r"$<$", ">": r"$>$", "|": r"\textbar{}",
    '"': "''",
}  # fmt: skip
_UPRIGHT = 10  # columns from which titles of a LaTeX table are turned
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"  # a wide table shrinks to the line


# Markdown


def markdown_text(content: Content) -> str:
    """The whole report as Markdown, with the figures beside it."""
    parts = [f"# {markdown(content.title)}", markdown(contents(content.groups, content.runs))]
    parts += [part for chapter in content.chapters for part in _markdown_chapter(chapter)]
    return "\n\n".join([*parts, f"Computed with {markdown(versions(content.groups))}."]) + "\n"


def _markdown_chapter(chapter: Chapter) -> list[str]:
    group = chapter.group
    lines = [
        f"- {markdown(name)}: {markdown(text)}" if name else f"  {markdown(text)}" for name, text in record_pairs(group)
    ]
    parts = [f"## {markdown(group.title)}", markdown(f"{outcome(group)} {group.apart}".strip()), "\n".join(lines)]
    for picture in chapter.pictures:
        parts += [f"![{markdown(picture.caption)}](figures/{picture.name}.png)"]
    for sheet in (*chapter.sheets, *chapter.published):
        parts += [f"**{markdown(sheet.title)}.** {markdown(sheet.note)}", "\n".join(markdown_table(sheet))]
    return parts


# LaTeX


def latex_text(content: Content) -> str:
    """Every table as LaTeX with booktabs, to be put into a document."""
    parts = [r"% \usepackage{booktabs,graphicx}"]
    for chapter in content.chapters:
        lines = [f"{name:<10} {text}" for name, text in record_pairs(chapter.group)]
        parts.append("\n".join(f"% {visible(' '.join(line.split()))}" for line in lines))
        parts += [_latex_table(chapter, sheet) for sheet in (*chapter.sheets, *chapter.published)]
    return "\n\n".join(parts) + "\n"


def _latex_table(chapter: Chapter, sheet: Table) -> str:
    upright = len(sheet.columns) >= _UPRIGHT
    titles = [_latex_title(column, upright) for column in sheet.columns]
    rows = [f"{_tex(name)} & {' & '.join(map(_latex_cell, entries))} \\\\" for name, entries in sheet.shown()]
    columns = "l" + "r" * len(sheet.columns)
    lines = [
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        *_latex_overs(sheet),
        f"Method & {' & '.join(titles)} \\\\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}}",
    ]
    caption = _tex(f"{chapter.group.title}. {sheet.title}: {sheet.note}")
    return "\n".join([r"\begin{table*}[t]", r"\centering", rf"\caption{{{caption}}}", _FIT, *lines, r"\end{table*}"])


def _latex_overs(sheet: Table) -> list[str]:
    """Titles above titles, with a rule below each."""
    spans = sheet.overs()
    if not spans:
        return []
    starts = accumulate((width for _, width in spans), initial=2)
    cells = [rf"\multicolumn{{{width}}}{{c}}{{{_tex(title)}}}" for title, width in spans]
    named = [(start, width) for start, (title, width) in zip(starts, spans, strict=False) if title]
    rules = [rf"\cmidrule(lr){{{start}-{start + width - 1}}}" for start, width in named]
    return [f" & {' & '.join(cells)} \\\\", "".join(rules)]


def _latex_title(column: Column, upright: bool) -> str:
    arrow = {None: "", True: r"$\uparrow$", False: r"$\downarrow$"}[column.higher if column.summary else None]
    return rf"\rotatebox{{70}}{{{_tex(column.title)}}}{arrow}" if upright else _tex(column.title) + arrow


def _latex_cell(entry: Shown) -> str:
    text = _tex(entry.text).replace("-", "$-$")
    text = rf"\textbf{{{text}}}" if entry.best else text
    return text + (rf"$_{{\pm {entry.deviation}}}$" if entry.deviation else "")


def _tex(text: str) -> str:
    """A text that LaTeX shows as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in visible(" ".join(text.split()))).replace("--", "-{}-")


# CSV


def numbers_csv(content: Content) -> str:
    """A line for each number of ours, with all digits; what papers published is not among them."""
    about = ["group", "benchmark", "protocol", "table", "method", "round", "column"]
    rows: list[list[Any]] = [[*about, "mean", "deviation", "low", "high"]]
    for group, sheet in ((chapter.group, sheet) for chapter in content.chapters for sheet in chapter.sheets):
        names = [group.title, group.table.benchmark, group.table.protocol, sheet.title]
        for name, entries in sheet.rows:
            for column, entry in zip(sheet.columns, entries, strict=True):
                if entry.value is not None:
                    place = [*names, name, column.over, column.title]
                    rows.append([*place, entry.value, entry.deviation, entry.low, entry.high])
    return csv_text(rows)
