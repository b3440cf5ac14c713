"""A protocol in words, to stand above a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def protocol_lines(protocol: dict[str, Any]) -> list[str]:
    """Say everything that a number depends on in a few lines."""
    order = f"{len(protocol['domains'])} domains in order, severity {protocol['severity']}"
    if protocol["held_out"]:
        order += f"; then frozen and tested on {len(protocol['held_out'])} more"
    about = {
        "benchmark": f"{protocol['benchmark']}, {protocol['kind']}: {order}",
        "data": f"{protocol['data']} ({protocol['data_fingerprint']}); {images_per_domain(protocol)} images per domain",
        "stream": f"batches of {protocol['batch_size']}, reset {protocol['resets']}, domain changes not told",
        "model": f"{protocol['model']} ({protocol['model_fingerprint']}); {_input(protocol['preprocessing'])}",
        "numbers": f"{protocol['precision']} on {protocol['device']}, seed {protocol['seed']}",
        "settings": protocol["tuning"],
    }
    return [f"{name:<10} {text}" for name, text in about.items()]


def protocol_note(protocol: dict[str, Any]) -> str:
    """Say the same in one short line, to stand in a figure."""
    return (
        f"{protocol['kind']}, severity {protocol['severity']}, {images_per_domain(protocol)} images per domain, "
        f"batches of {protocol['batch_size']}, model {protocol['model']}, seed {protocol['seed']}, "
        f"data {protocol['data']}"
    )


def images_per_domain(protocol: dict[str, Any]) -> str:
    """One number, or the range of several."""
    images = protocol["images_per_domain"]
    return str(images) if isinstance(images, int) else f"{min(images)} to {max(images)}"


def _input(preprocessing: dict[str, Any]) -> str:
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
