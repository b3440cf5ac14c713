"""Street scenes that are drawn when they are needed: pictures, label maps, and the geometry that weather needs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from testdg.data.streets.canvas import Array, Grain, StreetCanvas, floats
from testdg.data.streets.street import SKY, Street, draw_ground, draw_houses, draw_sky
from testdg.data.streets.things import draw_cars, draw_people, draw_poles, draw_trees
from testdg.data.weather import Geometry

HEIGHT, WIDTH = 96, 160
_HAZE = floats([0.78, 0.83, 0.88])[:, None, None]


class Scenes(NamedTuple):
    """Pictures (N, 3, H, W) and label maps (N, H, W), uint8, with their geometry."""

    images: Tensor
    labels: Tensor
    geometry: Geometry


def draw_scenes(indices: Sequence[int], seed: int) -> Scenes:
    """Draw scenes by number; each depends on the seed and on its number only."""
    parts = [_draw(np.random.default_rng([seed, index])) for index in indices]
    images, labels, depth, upward, lights, horizon = (torch.stack(values) for values in zip(*parts, strict=True))
    return Scenes(images, labels, Geometry(depth, upward, lights, horizon))


def _draw(random: np.random.Generator) -> tuple[Tensor, ...]:
    """One scene, drawn twice as large: picture, labels, depth, upward, lights, horizon."""
    horizon, middle, eye = random.uniform([0.4, 0.36, 1.35], [0.52, 0.64, 1.75]).tolist()
    canvas = StreetCanvas(2 * HEIGHT, 2 * WIDTH, horizon, middle, eye, SKY)
    left, right, pavement = random.uniform([-7.2, 1.8, 1.8], [-4.9, 4.2, 3.6]).tolist()
    street = Street(canvas, random, Grain(random), left, right, pavement, int(random.choice((-1, 1))))
    for draw in (draw_sky, draw_ground, draw_cars, draw_houses, draw_trees, draw_poles, draw_people):
        draw(street)
    fine = np.ascontiguousarray(canvas.colour.transpose(2, 0, 1))
    colour = (fine[:, ::2, ::2] + fine[:, 1::2, ::2] + fine[:, ::2, 1::2] + fine[:, 1::2, 1::2]) / 4
    labels, depth, upward, lights = (
        values[::2, ::2].copy() for values in (canvas.labels, canvas.depth, canvas.upward, canvas.lights)
    )
    image = torch.from_numpy(_develop(random, colour, depth * (labels != SKY)))
    maps = (torch.from_numpy(values)[None] for values in (depth, upward, lights))
    return image, torch.from_numpy(labels), *maps, torch.tensor(horizon)


def _develop(random: np.random.Generator, colour: Array, depth: Array) -> Array:
    """Light of a random tint and strength, some haze, the noise of a sensor; uint8, (3, H, W)."""
    light = (random.uniform(0.94, 1.04, 3) * random.uniform(0.85, 1.08)).astype(np.float32)
    colour = colour * light[:, None, None]
    colour += (_HAZE - colour) * (depth / (depth + 1500))
    noise = random.standard_normal((*depth.shape, 3), dtype=np.float32)
    colour += noise.transpose(2, 0, 1) * np.float32(0.012)
    return (colour.clip(0, 1) * 255).round().astype(np.uint8)
