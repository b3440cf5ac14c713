"""The corruptions by name, and their parameters at the five severities.

A row holds one tuple per severity; the tuple is passed to the corruption's function as its last arguments.
"""

from collections.abc import Mapping
from numbers import Integral
from typing import NamedTuple

from testdg.errors import UserError, look_up

Row = tuple[tuple[float, ...], ...]


class ParameterSet(NamedTuple):
    """The parameters of all corruptions, made for images of one size."""

    name: str
    rows: Mapping[str, Row]


STANDARD_ORDER: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The fifteen corruptions of reported results, in the order of a continual stream."""

EXTRA: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four further corruptions, for the choice of hyperparameters."""

SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)

_LARGEST_CIFAR_SIDE = 64
_ELASTIC_SIDE = 244 / 224  # the 224 px set scales its elastic parameters by 244, not by the side


def row(*values: float) -> Row:
    """The row of a corruption with one parameter."""
    return tuple((value,) for value in values)


def _elastic_row(*values: tuple[float, float, float]) -> Row:
    """The row of the elastic transform for 224 px, relative to the side of the image."""
    return tuple(tuple(_ELASTIC_SIDE * number for number in value) for value in values)


_CIFAR_ROWS: dict[str, Row] = {
    "gaussian_noise": row(0.04, 0.06, 0.08, 0.09, 0.10),  # scale
    "shot_noise": row(500, 250, 100, 75, 50),  # photons of a white pixel
    "impulse_noise": row(0.01, 0.02, 0.03, 0.05, 0.07),  # share of the values
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),  # radius, alias blur
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),  # sigma, reach, iterations
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),  # radius, sigma
    "zoom_blur": ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),  # number of factors from 1, step
    "snow": (  # mean, scale, zoom, threshold, radius, sigma, share of the unbleached image
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    # image, texture, zoom
    "frost": ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),  # strength, decay
    "brightness": row(0.05, 0.1, 0.15, 0.2, 0.3),  # added value
    "contrast": row(0.75, 0.5, 0.4, 0.3, 0.15),  # factor
    "elastic_transform": (  # displacement, its smoothness, affine shift; all relative to the side
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": row(0.95, 0.9, 0.85, 0.75, 0.65),  # relative side
    "jpeg_compression": row(80, 65, 58, 50, 40),  # quality
    "speckle_noise": row(0.06, 0.1, 0.12, 0.16, 0.2),  # relative scale
    "gaussian_blur": row(0.4, 0.6, 0.7, 0.8, 1),  # sigma
    "spatter": (  # mean, scale, sigma, threshold, strength (water) or sigma (mud), is mud
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),  # factor, added saturation
}

_IMAGENET_ROWS: dict[str, Row] = {
    "gaussian_noise": row(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": row(60, 25, 12, 5, 3),
    "impulse_noise": row(0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": row(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": row(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": _elastic_row(
        (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
    ),
    "pixelate": row(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": row(25, 18, 15, 10, 7),
    "speckle_noise": row(0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian_blur": row(1, 2, 3, 4, 6),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}

CIFAR = ParameterSet("cifar", _CIFAR_ROWS)
IMAGENET = ParameterSet("imagenet", _IMAGENET_ROWS)
_SETS = {parameters.name: parameters for parameters in (CIFAR, IMAGENET)}


def check_severity(severity: int) -> int:
    if not isinstance(severity, Integral) or isinstance(severity, bool) or severity not in SEVERITIES:
        raise UserError(f"severity must be 1 to 5; got {severity!r}", code="wrong-severity")
    return severity


def parameters_of(name: str, severity: int, parameters: ParameterSet | str | None, side: int) -> tuple[float, ...]:
    """Parameters of a corruption; by default, the side of the images decides which set is used."""
    row = look_up("corruption", name, CIFAR.rows)
    check_severity(severity)
    chosen = parameters or (CIFAR if side <= _LARGEST_CIFAR_SIDE else IMAGENET)
    if isinstance(chosen, str):
        chosen = look_up("parameter set", chosen, _SETS)
    return (row if chosen is CIFAR else chosen.rows[name])[severity - 1]
