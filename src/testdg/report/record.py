"""The record of a run in words: everything that a number depends on."""

from collections.abc import Iterable, Mapping
from typing import Any

from testdg.methods import methods
from testdg.runs.record import OWN_ORDERS, RESETS
from testdg.spec import CHOICES

StoredRecord = Mapping[str, Any]
"""The record of a result, as plain JSON."""
Pairs = list[tuple[str, str]]
"""Labels and values; without a label, a value belongs to the label above."""
RECORDED = [name for name, choice in CHOICES.items() if choice.recorded]
_RESETS = {
    RESETS["once"]: "domain changes not announced",
    RESETS["domain"]: "which shows the method where domains change",
}


def record_pairs(record: StoredRecord) -> Pairs:
    """The record as labels and values."""
    tuning, *more = record["tuning"].split("\n")
    data, model = (f"{record[key]} ({record[f'{key}_fingerprint']})" for key in ("data", "model"))
    return [
        ("benchmark", f"{record['benchmark']}, {record['kind']}: {_course(record)}"),
        ("data", f"{data}; {images_per_domain(record)} images per domain"),
        ("stream", f"{_batches(record)}, reset {record['resets']}, {_RESETS[record['resets']]}"),
        ("model", f"{model}; {_input(record['preprocessing'])}"),
        ("numbers", f"{record['precision']} on {record['device']}, seed {record['seed']}{_views(record)}"),
        *((key.replace("_", " "), str(value)) for key, value in record.items() if key in RECORDED),
        ("settings", tuning),
        *(("", line) for line in more),
    ]


def pair_lines(pairs: Pairs) -> list[str]:
    """Labels and values as lines of a terminal."""
    return [f"{label:<10} {value}" for label, value in pairs]


def record_lines(record: StoredRecord) -> list[str]:
    """The record as lines of a terminal."""
    return pair_lines(record_pairs(record))


def record_note(record: StoredRecord) -> str:
    """The record in one short line, for a figure."""
    parts = [
        record["kind"],
        _severity(record),
        f"{images_per_domain(record)} images per domain",
        _batches(record),
        f"model {record['model']}",
        f"seed {record['seed']}{_views(record)}",
        f"data {record['data']}",
    ]
    return ", ".join(part for part in parts if part)


def reconstruction_note(names: Iterable[str], task: str) -> str:
    """Which of some methods are reconstructions for a task, by their titles; empty where none is."""
    known = methods()
    kinds = [known[name] for name in dict.fromkeys(names) if name in known]
    found = ", ".join(kind.title for kind in kinds if task in kind.reconstructed())
    return f"reconstructions, without code of the authors: {found}" if found else ""


def images_per_domain(record: StoredRecord) -> str:
    """One number, or the range of several."""
    images = record["images_per_domain"]
    return str(images) if isinstance(images, int) else f"{min(images)} to {max(images)}"


def _course(record: StoredRecord) -> str:
    """Which domains come, in which order, how often and how strong."""
    order, rounds = record["order"], record["rounds"]
    where = f" in {'order' if order in OWN_ORDERS else order}"
    if record["sampling"] == "mixed":
        where = ""
    parts = [f"{len(record['domains'])} domains{where}"]
    parts += [f"{rounds} rounds"] if rounds > 1 else []
    course, tested = ", ".join(filter(None, [*parts, _severity(record)])), len(record["held_out"])
    if not tested:
        return course
    if {*record["held_out"]} <= {*record["domains"]}:
        return f"{course}; before the last {tested}, frozen and tested on them"
    return f"{course}; then frozen and tested on {tested} more"


def _severity(record: StoredRecord) -> str:
    severity = record["severity"]
    if isinstance(severity, list):
        return f"severities {' '.join(map(str, severity))}"
    return {"none": "", "gradual": "severity 1 to 5 and back"}.get(severity, f"severity {severity}")


def _views(record: StoredRecord) -> str:
    """Numbers of segmentation depend on the views that a prediction is made from."""
    if record["task"] != "segmentation":
        return ""
    count, _, rest = record.get("views", "one").partition(" ")
    return f", {'single view' if count == 'one' else f'views {count}'} {rest}".rstrip()


def _batches(record: StoredRecord) -> str:
    text, sampling, seed = f"batches of {record['batch_size']}", record["sampling"], record["sampling_seed"]
    if sampling == "mixed":
        return f"{text}, domains mixed (seed {seed})"
    if sampling == "sorted":
        return f"{text}, sorted by class"
    if sampling == "dirichlet":
        return f"{text}, classes bunched (Dirichlet {record['concentration']:g}, seed {seed})"
    return text


def _input(preprocessing: Mapping[str, Any] | str) -> str:
    """Size and normalisation of the images; a stored line of a run may have a text instead."""
    if isinstance(preprocessing, str):
        return preprocessing
    size = preprocessing["size"] if preprocessing["crop"] == "none" else preprocessing["crop"]
    if size == "none":
        parts = ["images as they come"]
    else:
        parts = [f"{size} px" if isinstance(size, int) else "{} x {} px".format(*size)]
    for name in ("mean", "std"):
        values = preprocessing[name]
        shown = f"{values[0]:g}" if len(set(values)) == 1 else " ".join(f"{value:.3g}" for value in values)
        parts.append(f"{name} {shown}")
    return ", ".join(parts)
