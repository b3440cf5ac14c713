"""Street scenes with label maps and the geometry that weather needs; what stands and moves in a street."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from testdg.data.streets.canvas import Array, Grain, StreetCanvas, floats
from testdg.data.streets.street import (
    CAR,
    LANE,
    PERSON,
    POLE,
    SKY,
    VEGETATION,
    Street,
    draw_ground,
    draw_houses,
    draw_sky,
)
from testdg.data.weather import Geometry

HEIGHT, WIDTH = 96, 160
_HAZE = floats([0.78, 0.83, 0.88])[:, None, None]
_PAINTS = floats(
    [
        [0.62, 0.08, 0.08], [0.1, 0.2, 0.5], [0.78, 0.78, 0.8], [0.12, 0.12, 0.13],
        [0.45, 0.47, 0.5], [0.85, 0.84, 0.8], [0.12, 0.34, 0.2], [0.75, 0.55, 0.12],
    ]
)  # fmt: skip
_GLASS = floats([0.13, 0.17, 0.2])
_RUBBER = floats([0.05, 0.05, 0.05])
_STEEL = floats([0.36, 0.38, 0.38])
_PLATES = floats([[0.75, 0.06, 0.06], [0.08, 0.2, 0.65], [0.9, 0.75, 0.1]])


def draw_trees(street: Street) -> None:
    """Trees along both pavements and behind the gaps: a trunk, and a crown with an uneven edge."""
    for _ in range(street.random.integers(3, 9)):
        side = street.random.choice((-1, 1))
        back = street.between(-1.2, 0.2) if street.random.random() < 0.7 else street.between(2, 8)
        _draw_tree(street, street.wall(side) + side * back, 6 + 55 * street.between(0, 1) ** 1.3)


def _draw_tree(street: Street, x: float, z: float) -> None:
    canvas, grain = street.canvas, street.grain
    radius, trunk = street.between(1.2, 2.3), street.between(1.8, 3.0)
    middle, green = trunk + 0.75 * radius, street.between(0.75, 1.2)
    bark = floats([0.26, 0.19, 0.13])
    canvas.paint(canvas.front(x - 0.12, x + 0.12, 0, middle, z), VEGETATION, bark)
    patch = canvas.front(x - 1.15 * radius, x + 1.15 * radius, middle - 1.1 * radius, middle + 1.15 * radius, z)
    if patch is None:
        return
    a, b = (patch.u - x) / radius, (patch.v - middle) / radius
    clump = grain.smooth(patch.u + 5 * x, patch.v + z, 0.55)
    leaf = grain.fine(patch.u + z, patch.v, 0.14)
    keep = a * a + b * b < 0.35 + 0.75 * clump + 0.3 * leaf
    light = 0.5 + 0.22 * b + 0.16 * street.sun * a + 0.7 * (clump - 0.3) + 0.4 * (leaf - 0.5)
    colour = floats([0.3, 0.46, 0.16]) * np.float32(green) * np.clip(light, 0.15, 1.3)[..., None]
    canvas.paint(patch, VEGETATION, colour, keep, upward=np.clip(b + 1.4 * clump - 0.75, 0, 0.9))


def draw_poles(street: Street) -> None:
    """Lamps at regular distances, and some signs."""
    side, step = street.random.choice((-1, 1)), street.between(14, 26)
    for z in np.arange(street.between(4, 12), 80, step):
        _draw_lamp(street, side, float(z))
    for _ in range(street.random.integers(1, 5)):
        _draw_sign(street, street.random.choice((-1, 1)), street.between(5, 35))


def _kerb(street: Street, side: int) -> float:
    """A place on the pavement, next to the kerb."""
    return (street.right if side > 0 else street.left) + side * 0.5


def _draw_lamp(street: Street, side: int, z: float) -> None:
    canvas, x = street.canvas, _kerb(street, side)
    arm, head = sorted((x, x - side * 1.6)), sorted((x - side * 1.0, x - side * 1.8))
    canvas.paint(canvas.front(x - 0.13, x + 0.13, 0, 6.5, z), POLE, _STEEL)
    canvas.paint(canvas.front(arm[0], arm[1], 6.4, 6.56, z), POLE, _STEEL)
    canvas.paint(canvas.front(head[0], head[1], 6.3, 6.55, z - 0.01), POLE, _STEEL * 1.6, lights=1.0)


def _draw_sign(street: Street, side: int, z: float) -> None:
    """A round, square or three-coloured plate on a pole."""
    canvas = street.canvas
    x = _kerb(street, side) + street.between(-0.2, 0.6) * side
    size = street.between(0.4, 0.6)
    canvas.paint(canvas.front(x - 0.08, x + 0.08, 0, 2.6, z), POLE, _STEEL)
    patch = canvas.front(x - size, x + size, 2.6 - size, 2.6 + size, z - 0.01)
    if patch is None:
        return
    a, b = (patch.u - x) / size, (patch.v - 2.6) / size
    far = a * a + b * b if street.random.random() < 0.6 else np.maximum(np.abs(a), np.abs(b)) ** 2
    plate = _PLATES[street.random.integers(len(_PLATES))]
    canvas.paint(patch, POLE, np.where((far < 0.5)[..., None], np.float32(0.9), plate), far < 1)


def draw_cars(street: Street) -> None:
    """Cars that are parked along the kerbs, and cars in both lanes."""
    for side in (-1, 1):
        z, kerb = street.between(3, 14), street.right if side > 0 else street.left
        parking = street.random.random() < 0.65
        while parking and z < 60:
            if street.random.random() < 0.6:
                _draw_car(street, kerb - side * 1.0, z, towards=street.random.random() < 0.3)
            z += street.between(5.2, 9)
    for lane, towards in ((0.0, False), (-LANE, True)):
        if street.random.random() < 0.65:
            _draw_car(street, lane + street.between(-0.3, 0.3), street.between(7, 40), towards)


def _draw_car(street: Street, x: float, z: float, towards: bool) -> None:
    """A body with wheels, a cabin of glass, lights and a shadow; seen from behind, or from the front."""
    canvas, paint = street.canvas, _PAINTS[street.random.integers(len(_PAINTS))]
    half, length = street.between(0.82, 0.92), street.between(3.7, 4.7)
    waist, roof = street.between(0.85, 1.0), street.between(1.38, 1.7)
    body, near = (x - half, x + half), z + (1.1 if towards else 0.55)
    cabin, far = (x - half + 0.13, x + half - 0.13), z + length - (0.55 if towards else 1.1)
    side = -1 if x > 0 else 1  # the side of the car that the camera sees
    canvas.shade(canvas.top(x - half - 0.25, x + half + 0.25, 0.0, z - 0.3, z + length + 0.3), 0.4)
    _draw_flank(street, x + side * half, side, z, length, waist, paint)
    _draw_end(street, body, waist, z, paint, towards)
    canvas.paint(canvas.top(*body, waist, z, z + length), CAR, paint * 1.15, upward=1.0)
    glass = canvas.side(x + side * (half - 0.13), waist, roof, near, far)
    if glass is not None:
        pillar = (glass.v > roof - 0.1) | ((glass.u - near) % 1.05 < 0.1)
        colour = np.where(pillar[..., None], paint, _GLASS) * np.float32(street.light(-side))
        canvas.paint(glass, CAR, colour, upward=0.8 * (glass.v > roof - 0.1))
    pane = canvas.front(*cabin, waist, roof, near)
    if pane is not None:
        frame = (pane.v > roof - 0.12) | (np.abs(pane.u - x) > half - 0.22)
        colour = np.where(frame[..., None], paint * 0.85, _GLASS * 1.4)
        canvas.paint(pane, CAR, colour, upward=0.8 * (pane.v > roof - 0.1))
    canvas.paint(canvas.top(*cabin, roof, near, far), CAR, paint * 1.2, upward=1.0)


def _draw_flank(street: Street, x: float, side: int, z: float, length: float, waist: float, paint: Array) -> None:
    """The long side of a body, with its wheels."""
    patch = street.canvas.side(x, 0.0, waist, z, z + length)
    if patch is None:
        return
    wheels = (z + 0.75, z + length - 0.75)
    away = np.minimum(*((patch.u - wheel) ** 2 for wheel in wheels)) + (patch.v - 0.32) ** 2
    metal = paint * np.float32(street.light(-side)) * np.where(patch.v > 0.6, 1.0, 0.85)[..., None]
    wheel = np.where((away < 0.025)[..., None], 0.4, _RUBBER)
    colour = np.where((away < 0.1)[..., None], wheel, metal)
    street.canvas.paint(patch, CAR, colour, (patch.v > 0.22) | (away < 0.1))


def _draw_end(street: Street, body: tuple[float, float], waist: float, z: float, paint: Array, towards: bool) -> None:
    """The short side of a body, with lights, a plate and the wheels below."""
    patch = street.canvas.front(*body, 0.0, waist, z)
    if patch is None:
        return
    half = (body[1] - body[0]) / 2
    away = np.abs(patch.u - body[0] - half)
    lamp = (away > half - 0.38) & (away < half - 0.06) & (np.abs(patch.v - 0.68) < 0.1)
    plate = (away < 0.26) & (np.abs(patch.v - 0.52) < 0.06)
    tyre = (patch.v < 0.26) & (away > half - 0.25)
    glow = floats([0.95, 0.95, 0.85] if towards else [0.75, 0.05, 0.05])
    colour = np.where(plate[..., None], np.float32(0.85), paint * np.float32(0.85))
    colour = np.where(lamp[..., None], glow, colour)
    dark = (patch.v < 0.32) & (away < 10)
    colour = np.where(dark[..., None], _RUBBER * 2, colour)
    lights = lamp * (1.0 if towards else 0.45)
    street.canvas.paint(patch, CAR, colour, (patch.v > 0.2) | tyre, lights=lights)


def draw_people(street: Street) -> None:
    for _ in range(street.random.integers(2, 10)):
        side = street.random.choice((-1, 1))
        kerb = street.right if side > 0 else street.left
        x = kerb + side * street.between(0.3, max(0.5, street.pavement - 0.4))
        if street.random.random() < 0.15:
            x = street.between(street.left, street.right)
        _draw_person(street, x, 4 + 24 * street.between(0, 1) ** 1.4)


def _draw_person(street: Street, x: float, z: float) -> None:
    canvas, tall, stride = street.canvas, street.between(1.5, 1.9), street.between(0.02, 0.12)
    canvas.shade(canvas.top(x - 0.3, x + 0.3, 0.0, z - 0.15, z + 0.3), 0.6)
    patch = canvas.front(x - 0.32, x + 0.32, 0, tall, z)
    if patch is None:
        return
    a, b = np.abs(patch.u - x), patch.v / tall
    legs = (b < 0.5) & (np.abs(a - stride - 0.08 * (0.5 - b)) < 0.09)
    trunk = (b >= 0.46) & (b < 0.84) & (a < 0.17 + 0.08 * (b > 0.5) * (b < 0.82))
    head = a * a + (patch.v - 0.91 * tall) ** 2 < 0.0155
    clothes = street.random.random((2, 3), dtype=np.float32) * floats([[0.8], [0.4]])
    shirt, trousers = clothes + np.float32(0.05)
    skin = floats([0.75, 0.55, 0.43]) * np.float32(street.between(0.4, 1.1))
    hair = (b > 0.93)[..., None] * np.ones_like(head)[..., None]
    body = np.where((b < 0.5)[..., None], trousers, shirt)
    colour = np.where(head[..., None], np.where(hair, skin * 0.35, skin), body)
    canvas.paint(patch, PERSON, colour, legs | trunk | head, upward=0.7 * (b > 0.95))


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
