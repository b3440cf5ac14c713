"""The record of a run in words, to stand above a table."""

from collections.abc import Iterable, Sequence
from typing import Any

from testdg.methods import methods
from testdg.runs.record import OWN_ORDERS, RESETS

_TOLD = {RESETS["once"]: "domain changes not told", RESETS["domain"]: "which tells the method where domains change"}


def record_lines(record: dict[str, Any]) -> list[str]:
    """Say everything that a number depends on in a few lines."""
    about = {
        "benchmark": f"{record['benchmark']}, {record['kind']}: {_course(record)}",
        "data": f"{record['data']} ({record['data_fingerprint']}); {images_per_domain(record)} images per domain",
        "stream": f"{_batches(record)}, reset {record['resets']}, {_TOLD[record['resets']]}",
        "model": f"{record['model']} ({record['model_fingerprint']}); {_input(record['preprocessing'])}",
        "numbers": f"{record['precision']} on {record['device']}, seed {record['seed']}{_views(record)}",
        "settings": record["tuning"],
    }
    return [f"{name:<10} {text}" for name, text in about.items()]


def record_note(record: dict[str, Any]) -> str:
    """Say the same in one short line, to stand in a figure."""
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


def images_per_domain(record: dict[str, Any]) -> str:
    """One number, or the range of several."""
    images = record["images_per_domain"]
    return str(images) if isinstance(images, int) else f"{min(images)} to {max(images)}"


def _course(record: dict[str, Any]) -> str:
    """Which domains come, in which order, how often and how strong."""
    order = record.get("order", OWN_ORDERS[0])
    rounds = record.get("rounds", 1)
    mixed = record.get("sampling") == "mixed"
    parts = [
        f"{len(record['domains'])} domains" + ("" if mixed else f" in {'order' if order in OWN_ORDERS else order}"),
        f"{rounds} rounds" if rounds > 1 else "",
        _severity(record),
    ]
    course, tested = ", ".join(filter(None, parts)), len(record["held_out"])
    if not tested:
        return course
    if {*record["held_out"]} <= {*record["domains"]}:
        return f"{course}; before the last {tested}, frozen and tested on them"
    return f"{course}; then frozen and tested on {tested} more"


def _severity(record: dict[str, Any]) -> str:
    severity = record["severity"]
    if isinstance(severity, list):
        return f"severities {' '.join(map(str, severity))}"
    return {"none": "", "gradual": "severity 1 to 5 and back"}.get(severity, f"severity {severity}")


def _views(record: dict[str, Any]) -> str:
    """Numbers of segmentation depend on how often a picture is looked at."""
    if record.get("task") != "segmentation":
        return ""
    count, _, rest = record.get("views", "one").partition(" ")
    return f", {'single view' if count == 'one' else f'views {count}'} {rest}".rstrip()


def _batches(record: dict[str, Any]) -> str:
    sampling, seed = record.get("sampling", "file"), record.get("sampling_seed")
    text = f"batches of {record['batch_size']}"
    if sampling == "mixed":
        return f"{text}, domains mixed (seed {seed})"
    if sampling == "sorted":
        return f"{text}, sorted by class"
    if sampling == "dirichlet":
        return f"{text}, classes bunched (Dirichlet {record['concentration']:g}, seed {seed})"
    return text


def _input(preprocessing: dict[str, Any] | str) -> str:
    if isinstance(preprocessing, str):  # of a run of which only that was kept
        return preprocessing
    size = preprocessing["crop"] if preprocessing["crop"] != "none" else preprocessing["size"]
    if size == "none":
        shown = "images as they come"
    else:
        shown = f"{size} px" if isinstance(size, int) else "{} x {} px".format(*size)
    return f"{shown}, mean {_short(preprocessing['mean'])}, std {_short(preprocessing['std'])}"


def _short(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else " ".join(f"{value:.3g}" for value in values)
