"""A protocol in words, to stand above a table."""

from collections.abc import Sequence
from typing import Any

from testdg.evaluation.protocol import OWN_ORDERS, RESETS

_TOLD = {RESETS["once"]: "domain changes not told", RESETS["domain"]: "which tells the method where domains change"}


def protocol_lines(protocol: dict[str, Any]) -> list[str]:
    """Say everything that a number depends on in a few lines."""
    about = {
        "benchmark": f"{protocol['benchmark']}, {protocol['kind']}: {_course(protocol)}",
        "data": f"{protocol['data']} ({protocol['data_fingerprint']}); {images_per_domain(protocol)} images per domain",
        "stream": f"{_batches(protocol)}, reset {protocol['resets']}, {_TOLD[protocol['resets']]}",
        "model": f"{protocol['model']} ({protocol['model_fingerprint']}); {_input(protocol['preprocessing'])}",
        "numbers": f"{protocol['precision']} on {protocol['device']}, seed {protocol['seed']}{_views(protocol)}",
        "settings": protocol["tuning"],
    }
    return [f"{name:<10} {text}" for name, text in about.items()]


def protocol_note(protocol: dict[str, Any]) -> str:
    """Say the same in one short line, to stand in a figure."""
    parts = [
        protocol["kind"],
        _severity(protocol),
        f"{images_per_domain(protocol)} images per domain",
        _batches(protocol),
        f"model {protocol['model']}",
        f"seed {protocol['seed']}{_views(protocol)}",
        f"data {protocol['data']}",
    ]
    return ", ".join(part for part in parts if part)


def images_per_domain(protocol: dict[str, Any]) -> str:
    """One number, or the range of several."""
    images = protocol["images_per_domain"]
    return str(images) if isinstance(images, int) else f"{min(images)} to {max(images)}"


def _course(protocol: dict[str, Any]) -> str:
    """Which domains come, in which order, how often and how strong."""
    order = protocol.get("order", OWN_ORDERS[0])
    rounds = protocol.get("rounds", 1)
    mixed = protocol.get("sampling") == "mixed"
    parts = [
        f"{len(protocol['domains'])} domains" + ("" if mixed else f" in {'order' if order in OWN_ORDERS else order}"),
        f"{rounds} rounds" if rounds > 1 else "",
        _severity(protocol),
    ]
    tested, later = len(protocol["held_out"]), {*protocol["held_out"]} <= {*protocol["domains"]}
    words = (
        f"before the last {tested}, frozen and tested on them" if later else f"then frozen and tested on {tested} more"
    )
    return ", ".join(part for part in parts if part) + (f"; {words}" if tested else "")


def _severity(protocol: dict[str, Any]) -> str:
    severity = protocol["severity"]
    if isinstance(severity, list):
        return f"severities {' '.join(map(str, severity))}"
    return {"none": "", "gradual": "severity 1 to 5 and back"}.get(severity, f"severity {severity}")


def _views(protocol: dict[str, Any]) -> str:
    """Numbers of segmentation depend on how often a picture is looked at."""
    if protocol.get("task") != "segmentation":
        return ""
    count, _, rest = protocol.get("views", "one").partition(" ")
    return f", {'single view' if count == 'one' else f'views {count}'} {rest}".rstrip()


def _batches(protocol: dict[str, Any]) -> str:
    sampling, seed = protocol.get("sampling", "file"), protocol.get("sampling_seed")
    text = f"batches of {protocol['batch_size']}"
    if sampling == "mixed":
        return f"{text}, domains mixed (seed {seed})"
    if sampling == "sorted":
        return "sorted by class"
    if sampling == "dirichlet":
        return f"{text}, classes bunched (Dirichlet {protocol['concentration']:g}, seed {seed})"
    return text


def _input(preprocessing: dict[str, Any] | str) -> str:
    if isinstance(preprocessing, str):  # of a run of which only that was kept
        return preprocessing
    size = preprocessing["crop"] if preprocessing["crop"] != "none" else preprocessing["size"]
    shown = (
        "images as they come"
        if size == "none"
        else f"{size} px"
        if isinstance(size, int)
        else "{} x {} px".format(*size)
    )
    return f"{shown}, mean {_short(preprocessing['mean'])}, std {_short(preprocessing['std'])}"


def _short(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else " ".join(f"{value:.3g}" for value in values)
