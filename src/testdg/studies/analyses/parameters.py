"""How many parameters each method moves, against the error."""

from testdg.runs.compare import by_key
from testdg.studies.analyses.subject import Numbers, Subject, warm_run
from testdg.studies.statistics import spread


def compute(subject: Subject) -> Numbers:
    """Learnable parameters of every method, and its mean score."""
    rows = scores(subject)
    for row in rows:
        adapter = warm_run(row.pop("spec")).adapter
        row["parameters"] = sum(parameter.numel() for parameter in adapter.trainable().values())
    total = sum(parameter.numel() for parameter in adapter.model.parameters())
    return {"metric": subject.complete()[0][1].metric.describe(), "model_parameters": total, "rows": rows}


def scores(subject: Subject) -> list[Numbers]:
    """Name, first spec, mean score and its deviation over seeds, for every method."""
    rows = []
    for name, mine in by_key((pair[0].name, pair) for pair in subject.complete()).items():
        values = [result.mean_score for _, result in mine]
        value = spread([one for one in values if one is not None])
        about = {"name": name, "method": mine[0][0].method, "spec": mine[0][0], "runs": len(mine)}
        rows.append({**about, "score": value.mean, "deviation": value.deviation})
    return rows
