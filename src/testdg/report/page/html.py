"""The page: one HTML file that needs nothing else."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from testdg.report.page.chapter import Chapter, Content
from testdg.report.page.figures import Picture
from testdg.report.page.words import contents, outcome, record_pairs, run_lines, versions
from testdg.report.safe import escape
from testdg.report.table import Shown, Table

THEME = '<button type="button" id="theme">Dark</button>'
_WIDE = 10  # columns from which titles stand upright


def html_page(content: Content) -> str:
    """The whole page."""
    body = [
        _header(content),
        "<main>",
        *(_chapter(chapter) for chapter in content.chapters),
        "</main>",
        f"<footer><p>Computed with {escape(versions(content.groups))}.</p></footer>",
    ]
    return whole_page(content.title, body)


def whole_page(title: str, body: Sequence[str]) -> str:
    """A page with the styles and the script that all pages share; it needs nothing else."""
    style, script = _part("page.css"), _part("page.js")
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
    ]
    body = [*body, f"<script>{script}</script>"]
    lines = ["<!DOCTYPE html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body, "</body>", "</html>"]
    return "\n".join(lines) + "\n"


def _part(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """What the page may do: its own styles and its own script, and nothing from elsewhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"


def _header(content: Content) -> str:
    outcomes = [
        f'<li><a href="#{chapter.name}">{escape(chapter.group.title)}</a>: {escape(outcome(chapter.group))}</li>'
        for chapter in content.chapters
    ]
    lines = [
        "<header>",
        THEME,
        f"<h1>{escape(content.title)}</h1>",
        f"<p>{escape(contents(content.groups, content.runs))}</p>",
        f"<ul>{''.join(outcomes)}</ul>",
        "</header>",
    ]
    return "\n".join(lines)


def _chapter(chapter: Chapter) -> str:
    group = chapter.group
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in record_pairs(group))
    first, second, *rest = chapter.sheets
    parts = [
        f'<section id="{chapter.name}">',
        f"<h2>{escape(group.title)}</h2>",
        f"<p>{escape(group.apart)}</p>" if group.apart else "",
        f"<dl>{pairs}</dl>",
        html_table(first),
        html_table(second),
        *(html_figure(picture) for picture in chapter.pictures),
        *(html_table(sheet) for sheet in rest),
        *(html_table(sheet, "published") for sheet in chapter.published),
        _details(chapter),
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def html_figure(picture: Picture) -> str:
    """A figure with its caption."""
    caption = escape(picture.caption)
    return f'<figure role="img" aria-label="{caption}">{picture.svg()}<figcaption>{caption}</figcaption></figure>'


def html_table(sheet: Table, kind: str = "ours") -> str:
    """A table whose columns sort it."""
    look = f"{kind} wide" if len(sheet.columns) >= _WIDE else kind
    titles = ["<tr>", _title("method", "")]
    titles += [_title(column.title, _class(column.summary)) for column in sheet.columns]
    rows = [
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(_cell(entry, column.summary) for entry, column in zip(entries, sheet.columns, strict=True))
        + "</tr>"
        for name, entries in sheet.shown()
    ]
    caption = f"<caption><strong>{escape(sheet.title)}</strong> {escape(sheet.note)}</caption>"
    head = f"<thead>{_overs(sheet)}{''.join(titles)}</tr></thead>"
    table = f'<table class="{look}">{caption}{head}<tbody>{"".join(rows)}</tbody></table>'
    label = escape(f"{sheet.title}, table")
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'


def _overs(sheet: Table) -> str:
    spans = sheet.overs()
    cells = "".join(f'<th colspan="{width}" scope="colgroup">{escape(title)}</th>' for title, width in spans)
    return f'<tr class="over"><td></td>{cells}</tr>' if spans else ""


def _title(text: str, look: str) -> str:
    return f'<th scope="col"{look}><button type="button"><span>{escape(text)}</span></button></th>'


def _class(summary: bool) -> str:
    return ' class="summary"' if summary else ""


def _cell(entry: Shown, summary: bool) -> str:
    text = escape(entry.text).replace("-", "−")
    text = f"<strong>{text}</strong>" if entry.best else text
    deviation = f"<small>± {entry.deviation}</small>" if entry.deviation else ""
    value = "" if entry.value is None else f' data-value="{entry.value!r}"'
    return f"<td{_class(summary)}{value}>{text}{deviation}</td>"


def _details(chapter: Chapter) -> str:
    items = [f"<dt>{escape(row.name)}</dt>{_lines(run_lines(chapter.group, row))}" for row in chapter.group.table.rows]
    return f"<details><summary>Settings and runs</summary><dl>{''.join(items)}</dl></details>"


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"<dd>{escape(line)}</dd>" for line in lines)
