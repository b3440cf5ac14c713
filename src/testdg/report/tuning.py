"""What a tuning found: every configuration with its score, the chosen one marked, and how sure the choice is."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from testdg.report.safe import csv_text, render
from testdg.report.table import Column, Entry, Table, plain_table
from testdg.studies.tuning import Choice

_DIGITS = 2


def tuning_text(choices: Sequence[Choice], about: Sequence[str]) -> str:
    """Everything as aligned text: conditions, a table for each method, and the choices."""
    parts = ["\n".join(about)]
    for choice in choices:
        table = choice_table(choice)
        parts.append("\n".join([table.title, *plain_table(table), *remarks(choice)]))
    return "\n\n".join([*parts, "\n".join(plain_table(summary_table(choices)))])


def tuning_markdown(choices: Sequence[Choice], about: Sequence[str]) -> str:
    """The same as Markdown, the choices first."""
    sentences = [" ".join(f"{line[:1].upper()}{line[1:]}." for line in remarks(choice)) for choice in choices]
    tables = list(zip(map(choice_table, choices), sentences, strict=True))
    return render("tuning.md", about=about, summary=summary_table(choices), tables=tables)


def tuning_csv(choices: Iterable[Choice]) -> str:
    """A line for each configuration, with all digits."""
    rows: list[list[Any]] = [["row", "settings", "metric", "score", "behind", "published", "chosen", "seconds"]]
    for choice in choices:
        for one in choice.tried:
            about = [choice.variant.key, one.configuration.described, choice.metric.key, one.score]
            flags = [one.configuration.published, one is choice.best]
            rows.append([*about, choice.behind(one), *flags, round(one.seconds, 3)])
    return csv_text(rows)


def tuning_plain(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """The same as plain JSON."""
    return [
        {
            "row": choice.variant.key,
            **asdict(choice.chosen()),
            "source": choice.source,
            "ties": [one.configuration.settings for one in choice.ties],
            "tried": [
                {"settings": one.configuration.settings, "score": one.score, "published": one.configuration.published}
                for one in choice.tried
            ],
        }
        for choice in choices
    ]


def choice_table(choice: Choice) -> Table:
    """A row for each configuration of a method, in the order of its search."""
    keys = list(choice.tried[0].configuration.settings)
    columns = [*map(Column, keys), Column.of(choice.metric, "", 1)]
    columns += [Column("behind", digits=_DIGITS, signed=True), Column("")]
    rows = []
    for number, one in enumerate(choice.tried, 1):
        values = [Entry(text=part.partition("=")[2]) for part in one.configuration.described.split(", ")]
        score = Entry(text="no score") if one.score is None else Entry(one.score)
        tied = one is not choice.best and one in choice.ties
        marks = {"chosen": one is choice.best, "tied": tied, "published": one.configuration.published}
        mark = ", ".join(mark for mark, holds in marks.items() if holds)
        rows.append((f"{number}", [*values, score, Entry(choice.behind(one)), Entry(text=mark)]))
    source = "" if choice.source is None else f", Source {choice.source:.{_DIGITS}f}"
    return Table(f"{choice.variant.title}{source}", "", columns, rows, corner="")


def remarks(choice: Choice) -> list[str]:
    """How sure the choice is: ties, neighbours, edges of what was tried, and configurations without a score."""
    lines = [f"chosen: {choice.best.configuration.described}"]
    if ties := len(choice.ties) - 1:
        lines.append(f"tied with {ties} more: of ties, the published settings are taken, then the smallest rate")
    near = [behind for one in choice.neighbours() if (behind := choice.behind(one)) is not None]
    if near:
        lines.append(f"neighbours are {min(near):+.{_DIGITS}f} to {max(near):+.{_DIGITS}f} behind")
    if choice.widened:
        lines.append(f"search widened {'once' if choice.widened == 1 else f'{choice.widened} times'}")
    for key, which in choice.edges().items():
        lines.append(f"{key} is the {which} that was tried: widen its search")
    if missing := len(choice.tried) - len(choice.scored):
        lines.append(f"{missing} configurations have no score")
    return lines


def summary_table(choices: Sequence[Choice]) -> Table:
    """A row for each method: what was chosen, next to the published settings and Source."""
    metric, rows = choices[0].metric, []
    for choice in choices:
        score = choice.best.score
        gain = None if choice.source is None or score is None else choice.metric.gain(choice.source, score)
        edges = ", ".join(f"{which} {key}" for key, which in choice.edges().items())
        chosen, remark = Entry(text=choice.best.configuration.described), f"{edges}: widen" if edges else ""
        numbers = map(Entry, (score, choice.published.score, gain))
        rows.append((choice.variant.title, [chosen, *numbers, Entry(text=remark)]))
    columns = [Column("chosen"), Column.of(metric, "", 1), Column.of(metric, "published", 1)]
    columns += [Column.gains(metric, "gain", 1), Column("remark")]
    return Table("Choices", "", columns, rows, corner="")
