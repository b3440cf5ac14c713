"""What a report says in words: what was compared, and what came out."""

from collections.abc import Sequence

from testdg.report.bench import INTERVAL, interval_text, table_record
from testdg.report.page.groups import Group
from testdg.report.page.runs import Runs
from testdg.spec import SOURCE
from testdg.studies import BenchRow


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def contents(groups: Sequence[Group], runs: Runs) -> str:
    """How much a report holds, and what was left out."""
    methods = len({row.method for group in groups for row in group.table.rows})
    parts = [f"{counted(len(runs.results), 'run')} of {counted(methods, 'method')} in {counted(len(groups), 'group')}"]
    parts[0] += " of results that can be compared" if len(groups) > 1 else ""
    if runs.unfinished:
        parts.append(f"{counted(runs.unfinished, 'run')} not complete and left out")
    if runs.damaged:
        parts.append(f"{counted(len(runs.damaged), 'run')} damaged and left out")
    if runs.copies:
        parts.append(f"{counted(runs.copies, 'copy', 'copies')} of the same run left out")
    return "; ".join(parts) + "."


def outcome(group: Group) -> str:
    """The best row of a group in a sentence, beside Source."""
    table, metric = group.table, group.table.metric
    rows = [row for row in table.rows if table.whole(row)] or table.rows
    score_name = f"mean {metric.name}{' on what is left out' if table.leaves_out else ''}"
    best = (max if metric.higher else min)(rows, key=lambda row: table.score(row).value.mean)
    score, source = table.score(best), next((row for row in rows if row.method == SOURCE), None)
    if len(rows) == 1:
        return f"{best.name} has a {score_name} of {score.value.show(metric)}."
    equal = sum(table.score(row).value.mean == score.value.mean for row in rows) - 1
    who = f"{best.name} and {counted(equal, 'other')} have" if equal else f"{best.name} has"
    among = f"Of {len(rows)} rows, " if len(rows) > len({row.method for row in rows}) else ""
    text = f"{among}{who} the {'highest' if metric.higher else 'lowest'} {score_name}, {score.value.show(metric)}"
    if source is None or best.method == SOURCE:
        return f"{text}." if source else f"{text}; Source was not run."
    text += f"; Source has {table.score(source).value.show(metric)}"
    if (gain := score.gain) is None:
        return f"{text}."
    interval = "" if gain.low is None else f" ({INTERVAL} {interval_text(gain, 1)})"
    return f"{text}, a gain of {gain.mean:.1f} points{interval}."


def record_pairs(group: Group) -> list[tuple[str, str]]:
    """The record of a group: what each line is about, and what it says."""
    pairs = [(line[:10].strip(), line[11:].strip()) for line in table_record(group.table)]
    if group.table.leaves_out:
        told = f"{len(group.table.streams)} streams, one for each domain that is left out; the first is described above"
        pairs.append(("runs", told))
    return pairs


def run_lines(group: Group, row: BenchRow) -> list[str]:
    """The settings of a row, and its runs."""
    settings = row.results[0].method["settings"]
    lines = [", ".join(f"{key} {value}" for key, value in settings.items() if key != "seed") or "no settings"]
    for result in row.results:
        score = group.table.mean(result)
        told = "no score" if score is None else result.metric.show(score, more=1)
        lines.append(f"{result.folder.name}: seed {result.record['seed']}, {told}")
    return lines


def versions(groups: Sequence[Group]) -> str:
    """The versions that computed the results."""
    found = [result.versions for group in groups for row in group.table.rows for result in row.results]
    names = dict.fromkeys(name for one in found for name in one)
    return ", ".join(f"{n} {' and '.join(sorted({str(one[n]) for one in found if n in one}))}" for n in names)
