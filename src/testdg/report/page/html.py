"""The page: one HTML file that needs nothing else."""

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources

from testdg.report.page.chapter import Chapter, Content
from testdg.report.page.figures import Picture
from testdg.report.page.words import contents, outcome, record_pairs, run_lines, versions
from testdg.report.safe import escape
from testdg.report.table import Shown, Table

_WIDE = 10  # columns from which titles stand upright


def html_page(content: Content) -> str:
    """The whole page."""
    outcomes = [
        f'<li><a href="#{chapter.name}">{escape(chapter.group.title)}</a>: {escape(outcome(chapter.group))}</li>'
        for chapter in content.chapters
    ]
    lead = [f"<p>{escape(contents(content.groups, content.runs))}</p>", f"<ul>{''.join(outcomes)}</ul>"]
    footer = f"<footer><p>Computed with {escape(versions(content.groups))}.</p></footer>"
    return whole_page(content.title, lead, map(_chapter, content.chapters), [footer])


def whole_page(title: str, lead: Iterable[str], main: Iterable[str], footer: Iterable[str] = ()) -> str:
    """A page with the styles and the script that all pages share; it needs nothing else, and may load nothing."""
    style, script = ((resources.files(__package__) / f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        "<header>",
        '<button type="button" id="theme">Dark</button>',
        f"<h1>{escape(title)}</h1>",
        *lead,
        "</header>",
        "<main>",
        *main,
        "</main>",
        *footer,
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def _chapter(chapter: Chapter) -> str:
    group = chapter.group
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in record_pairs(group))
    rows = [f"<dt>{escape(row.name)}</dt>{html_lines(run_lines(group, row))}" for row in group.table.rows]
    first, second, *rest = chapter.sheets
    parts = [
        f'<section id="{chapter.name}">',
        f"<h2>{escape(group.title)}</h2>",
        f"<p>{escape(group.apart)}</p>" if group.apart else "",
        f"<dl>{pairs}</dl>",
        html_table(first),
        html_table(second),
        *map(html_figure, chapter.pictures),
        *map(html_table, rest),
        *(html_table(sheet, "published") for sheet in chapter.published),
        html_details("Settings and runs", "".join(rows)),
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def html_details(title: str, items: str) -> str:
    """Items of a list that a click shows."""
    return f"<details><summary>{title}</summary><dl>{items}</dl></details>"


def html_lines(lines: Iterable[str]) -> str:
    """Lines as items of a list."""
    return "".join(f"<dd>{escape(line)}</dd>" for line in lines)


def html_figure(picture: Picture) -> str:
    """A figure with its caption."""
    caption = escape(picture.caption)
    return f'<figure role="img" aria-label="{caption}">{picture.svg()}<figcaption>{caption}</figcaption></figure>'


def html_table(sheet: Table, kind: str = "ours") -> str:
    """A table whose columns sort it."""
    look = f"{kind} wide" if len(sheet.columns) >= _WIDE else kind
    kinds = [' class="summary"' if column.summary else "" for column in sheet.columns]
    titles = zip(["method", *(column.title for column in sheet.columns)], ["", *kinds], strict=True)
    head = "".join(
        f'<th scope="col"{kind}><button type="button"><span>{escape(title)}</span></button></th>'
        for title, kind in titles
    )
    rows = [
        f'<tr><th scope="row">{escape(name)}</th>{"".join(map(_cell, entries, kinds))}</tr>'
        for name, entries in sheet.shown()
    ]
    caption = f"<caption><strong>{escape(sheet.title)}</strong> {escape(sheet.note)}</caption>"
    table = f"{caption}<thead>{_overs(sheet)}<tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    label = escape(f"{sheet.title}, table")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{look}">{table}</table></div>'
    )


def _overs(sheet: Table) -> str:
    spans = sheet.overs()
    cells = "".join(f'<th colspan="{width}" scope="colgroup">{escape(title)}</th>' for title, width in spans)
    return f'<tr class="over"><td></td>{cells}</tr>' if spans else ""


def _cell(entry: Shown, kind: str) -> str:
    text = escape(entry.text).replace("-", "−")
    text = f"<strong>{text}</strong>" if entry.best else text
    deviation = f"<small>± {entry.deviation}</small>" if entry.deviation else ""
    value = "" if entry.value is None else f' data-value="{entry.value!r}"'
    return f"<td{kind}{value}>{text}{deviation}</td>"
