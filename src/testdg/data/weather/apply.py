"""Put pictures into weather: the one way in to the four conditions."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from testdg.data.corruptions.filters import from_levels, to_levels
from testdg.data.corruptions.generator import ImageNoise
from testdg.data.corruptions.parameters import check_severity
from testdg.data.weather import conditions
from testdg.data.weather.geometry import Geometry, guess_geometry
from testdg.errors import UserError, look_up

CONDITIONS = ("fog", "night", "rain", "snow")
_CHUNK = 1 << 19  # values that are worked on at a time

PARAMETERS = {
    # metres of visibility
    "fog": ((600.0,), (380.0,), (250.0,), (170.0,), (120.0,)),
    # light of the sky, headlights, noise of the sensor
    "night": ((0.35, 1.0, 0.008), (0.25, 1.0, 0.01), (0.18, 0.95, 0.015), (0.12, 0.9, 0.02), (0.08, 0.85, 0.025)),
    # visibility, light, how wet, streaks, their length in heights
    "rain": (
        (800.0, 0.95, 0.2, 50, 0.06),
        (600.0, 0.92, 0.35, 80, 0.07),
        (450.0, 0.88, 0.5, 120, 0.08),
        (350.0, 0.84, 0.62, 170, 0.1),
        (250.0, 0.8, 0.75, 230, 0.12),
    ),
    # visibility, how much is covered, flakes, the radius of the largest in heights
    "snow": (
        (800.0, 0.12, 40, 0.014),
        (600.0, 0.22, 60, 0.017),
        (450.0, 0.32, 90, 0.02),
        (330.0, 0.42, 120, 0.023),
        (250.0, 0.52, 160, 0.026),
    ),
}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {name: getattr(conditions, name) for name in CONDITIONS}


def weather(
    images: Tensor,
    name: str,
    severity: int,
    *,
    indices: Sequence[int],
    seed: int = 0,
    geometry: Geometry | None = None,
) -> Tensor:
    """Put uint8 pictures, (N, 3, H, W), into a condition at a severity of 1 to 5.

    `indices` are the pictures' places in the data set: what falls depends on them, not on the batch. Without a
    `geometry` it is guessed from each picture.
    """
    check_condition(name)
    settings = PARAMETERS[name][check_severity(severity) - 1]
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise UserError(f"images must be uint8 of shape (N, 3, H, W); got {images.dtype} {tuple(images.shape)}")
    if len(indices) != len(images):
        raise UserError(f"indices must name one place per image; got {len(indices)} for {len(images)} images")
    result = torch.empty_like(images)
    size = max(1, _CHUNK // max(1, images[:1].numel()))
    for start in range(0, len(images), size):
        part = range(start, min(start + size, len(images)))
        pictures = from_levels(images[part.start : part.stop])
        known = guess_geometry(pictures) if geometry is None else geometry.take(part)
        noise = ImageNoise(seed, f"weather {name}", severity, [indices[place] for place in part])
        result[part.start : part.stop] = to_levels(_FUNCTIONS[name](pictures, known, noise, *settings))
    return result


def check_condition(name: str) -> None:
    """Refuse a condition that does not exist."""
    look_up("condition", name, PARAMETERS)
