"""A canvas with depth: flat faces in the world, seen by a camera, each painted where it is nearest.

The camera stands at (0, height, 0) and looks along z; x points right and y up, in metres. A face is parallel to two of
the axes, so its distance depends on the row alone, on the column alone, or on nothing, and no ray is traced.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from testdg.data.weather import FAR

Array = NDArray[Any]
NEAR = 0.5


class Patch(NamedTuple):
    """The pixels of a face: rows and columns, distance, two coordinates on the face, and which pixels belong to it."""

    rows: slice
    columns: slice
    z: Array | float
    u: Array
    v: Array
    inside: Array | bool = True


class StreetCanvas:
    """Colour, class, distance, and how far each pixel faces up and shines at night."""

    def __init__(self, height: int, width: int, horizon: float, middle: float, eye: float, sky: int) -> None:
        focal = 0.8 * width
        self.eye = eye
        self.across = ((np.arange(width) + 0.5 - middle * width) / focal).astype(np.float32)
        self.up = ((horizon * height - np.arange(height) - 0.5) / focal).astype(np.float32)
        self.colour = np.zeros((height, width, 3), np.float32)
        self._pixels = _pixels(self.colour)
        self.labels = np.full((height, width), sky, np.uint8)
        self.depth = np.full((height, width), FAR, np.float32)
        self.upward = np.zeros((height, width), np.float32)
        self.lights = np.zeros((height, width), np.float32)

    def front(self, left: float, right: float, low: float, high: float, z: float) -> Patch | None:
        """A face that looks at the camera, at a distance; u is x and v is y."""
        if z < NEAR:
            return None
        x, y = self.across * np.float32(z), self.eye + self.up * np.float32(z)
        columns, rows = _between(x, left, right), _between(y, low, high)
        if columns is None or rows is None:
            return None
        return Patch(rows, columns, z, x[None, columns], y[rows, None])

    def side(self, x: float, low: float, high: float, near: float, far: float) -> Patch | None:
        """A face along the street; u is z and v is y."""
        towards = self.across * np.sign(x)
        z = np.float32(abs(x)) / np.maximum(towards, np.float32(1e-6))
        columns = _between(z, max(near, NEAR), far)
        if columns is None:
            return None
        y = self.eye + self.up[:, None] * z[None, columns]
        inside = (y > low) & (y < high)
        rows = _span(inside.any(1))
        if rows is None:
            return None
        return Patch(rows, columns, z[None, columns], z[None, columns], y[rows], inside[rows])

    def top(self, left: float, right: float, y: float, near: float, far: float) -> Patch | None:
        """A face that looks up, below the camera; u is x and v is z."""
        if y >= self.eye:
            return None
        z = np.float32(self.eye - y) / np.maximum(-self.up, np.float32(1e-6))
        rows = _between(z, max(near, NEAR), far)
        if rows is None:
            return None
        x = self.across[None] * z[rows, None]
        inside = (x > left) & (x < right)
        columns = _span(inside.any(0))
        if columns is None:
            return None
        return Patch(rows, columns, z[rows, None], x[:, columns], z[rows, None], inside[:, columns])

    def paint(
        self,
        patch: Patch | None,
        label: Array | int,
        colour: Array,
        keep: Array | bool = True,
        upward: Array | float = 0.0,
        lights: Array | float = 0.0,
    ) -> None:
        """Paint a face where `keep` is true and it is nearer than earlier ones."""
        if patch is None:
            return
        place = patch.rows, patch.columns
        shown = (self.depth[place] > patch.z) & patch.inside & keep
        np.copyto(self._pixels[place], _pixels(colour), where=shown)
        maps = (self.labels, label), (self.depth, patch.z), (self.upward, upward), (self.lights, lights)
        for target, values in maps:
            np.copyto(target[place], values, where=shown, casting="unsafe")

    def shade(self, patch: Patch | None, factor: Array | float) -> None:
        """Darken the ground below a face that lies just above it."""
        if patch is not None:
            place = patch.rows, patch.columns
            shown = (self.depth[place] > 0.98 * np.asarray(patch.z)) & (self.upward[place] == 1) & patch.inside
            self.colour[place] *= np.where(shown, factor, 1)[..., None].astype(np.float32)


def floats(values: ArrayLike) -> Array:
    """Numbers as float32, the type of all drawing."""
    return np.array(values, np.float32)


def tint(palette: Array, kinds: Array, light: Array) -> Array:
    """Colours of a palette, one a pixel, each as bright as the light there."""
    colour: Array = palette.take(kinds, 0).reshape(-1) * light.repeat(3)
    return colour.reshape(*kinds.shape, 3)


def part(values: Array, period: float) -> Array:
    """Position of each number in its period, from 0 to 1."""
    turns: Array = values * np.float32(1 / period)
    return turns - np.floor(turns)


def _between(values: Array, low: float, high: float) -> slice | None:
    return _span((values > low) & (values < high))


def _span(mask: Array | np.bool_) -> slice | None:
    """The range of the true values, which are contiguous."""
    count, first = np.count_nonzero(mask), int(mask.argmax())
    return slice(first, first + count) if count else None


def _pixels(colour: Array) -> Array:
    """Colours with one item per pixel, which is copied faster than three numbers."""
    return np.ascontiguousarray(colour, np.float32).view("V12")[..., 0]


class Grain:
    """Random textures of a scene, looked up by position: fine grain, and smooth clouds."""

    def __init__(self, random: np.random.Generator) -> None:
        self.table = random.random((64, 64), dtype=np.float32)

    def fine(self, u: Array, v: Array, size: float) -> Array:
        """A random number in [0, 1) for each cell of a grid of a size."""
        return self._look_up(_cell(v, size), _cell(u, size))

    def smooth(self, u: Array, v: Array, size: float) -> Array:
        """Numbers in [0, 1) that change smoothly over cells of a size."""
        a, b = u / np.float32(size), v / np.float32(size)
        i, j = np.floor(a), np.floor(b)
        right, down = _ease(a - i), _ease(b - j)
        i, j = i.astype(np.int32), j.astype(np.int32)
        left, top, after, below = i & 63, j & 63, (i + 1) & 63, (j + 1) & 63
        look_up, other = self._look_up, 1 - right
        upper = look_up(top, left) * other + look_up(top, after) * right
        lower = look_up(below, left) * other + look_up(below, after) * right
        mixed: Array = upper * (1 - down) + lower * down
        return mixed

    def _look_up(self, rows: Array, columns: Array) -> Array:
        return self.table.take(rows * 64 + columns)


def _cell(values: Array, size: float) -> Array:
    return np.floor(values * np.float32(1 / size)).astype(np.int32) & 63


def _ease(x: Array) -> Array:
    eased: Array = x * x * (3 - 2 * x)
    return eased
