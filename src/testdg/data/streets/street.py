"""The street of a scene: its classes, its width, its light, the ground, the sky and the houses."""

from dataclasses import dataclass

import numpy as np

from testdg.data.segmentation.classes import COLOURS
from testdg.data.streets.canvas import NEAR, Array, Grain, Patch, StreetCanvas, floats, part, tint

CLASSES = ("road", "pavement", "building", "fence", "pole", "vegetation", "sky", "person", "car")
ROAD, PAVEMENT, BUILDING, FENCE, POLE, VEGETATION, SKY, PERSON, CAR = range(len(CLASSES))
_SHOWN_AS = ("road", "sidewalk", "building", "fence", "traffic sign", "vegetation", "sky", "person", "car")
PALETTE = tuple(COLOURS[name] for name in _SHOWN_AS)  # of label maps, as Cityscapes has them
LANE = 3.2
END = 90.0  # metres to the end of the street
_WALLS = floats(
    [[0.62, 0.5, 0.4], [0.7, 0.64, 0.52], [0.5, 0.3, 0.24], [0.58, 0.57, 0.55], [0.74, 0.71, 0.66], [0.42, 0.38, 0.36]]
)
_ROOFS = floats([[0.34, 0.17, 0.13], [0.22, 0.22, 0.25], [0.3, 0.25, 0.2]])
_GRASS = floats([0.28, 0.4, 0.14])
_GLASS = floats([0.22, 0.27, 0.33])


@dataclass(frozen=True)
class Street:
    """The canvas, the random numbers and the measures of the street of a scene."""

    canvas: StreetCanvas
    random: np.random.Generator
    grain: Grain
    left: float
    """Where the road ends, left and right of the camera, in metres."""
    right: float
    pavement: float
    sun: int
    """The side of the sun: -1 or 1."""

    def wall(self, side: int) -> float:
        """Distance of the houses of a side."""
        return self.right + self.pavement if side > 0 else self.left - self.pavement

    def light(self, side: int) -> float:
        """Brightness of the walls of a side, in the sun or in the shade."""
        return 0.62 if side == self.sun else 1.05

    def between(self, low: float, high: float) -> float:
        """A random number in a range."""
        return low + (high - low) * self.random.random()


def draw_sky(street: Street) -> None:
    """A gradient from the horizon up, with clouds."""
    canvas, grain = street.canvas, street.grain
    cover, blue = street.between(0.25, 0.75), street.between(0.75, 1.1)
    rows = int((canvas.up > -0.04).sum()) // 2 * 2
    # Clouds are soft: half the pixels will do.
    up, across = canvas.up[:rows:2, None], canvas.across[None, ::2]
    large = grain.smooth(across + 3, up * 2.5 + 5, 0.25)
    small = grain.smooth(across, up * 2.5, 0.09)
    cloud = np.float32(0.65) * large + np.float32(0.35) * small
    cloud = np.clip((cloud - np.float32(1 - cover)) * 4, 0, np.float32(0.9))[..., None]
    top, low = floats([0.3, 0.5, 0.8]) * np.float32(blue), floats([0.78, 0.84, 0.9])
    sky = low + (top - low) * np.clip(up * 2, 0, 1)[..., None]
    sky = sky + (np.float32(0.9) - sky) * cloud
    canvas.colour[:rows] = sky.repeat(2, 0).repeat(2, 1)


def draw_ground(street: Street) -> None:
    """Road with marks, kerbs, pavements of slabs, and grass behind the houses."""
    patch = street.canvas.top(-300, 300, 0.0, NEAR, 600)
    assert patch is not None
    x, z = patch.u, patch.v
    road = (x > street.left) & (x < street.right)
    paved = (x > street.left - street.pavement) & (x < street.right + street.pavement)
    marks = _marks(street, x, z) & road
    kerb = (np.abs(x - street.left) < 0.14) | (np.abs(x - street.right) < 0.14)
    joints = ((part(x, 0.9) < 0.08) | (part(z, 0.9) < 0.08)) & (z < 14)
    fading = np.float32(0.4) / (1 + z * np.float32(0.15))
    rough = (street.grain.fine(x, z, 0.11) - np.float32(0.5)) * fading
    rough += (street.grain.smooth(x, z, 2.3) - np.float32(0.5)) * np.float32(0.18)
    # Asphalt, slabs, joints, grass; kerbs and marks on top.
    surface = np.where(road, 0, np.where(paved, 1 + joints, 3))
    surface = np.where(marks, 5, np.where(kerb, 4, surface))
    asphalt, slabs = street.between(0.3, 0.44), street.between(0.5, 0.64)
    greys = floats([asphalt, slabs, 0.8 * slabs, 0, slabs + 0.12, 0.88])[:, None] * floats([1.01, 0.99, 0.96])
    greys[3] = _GRASS
    colour = tint(greys, surface, (1 + rough) * _sunlight(street, x, z))
    labels = np.where(road, ROAD, np.where(paved, PAVEMENT, VEGETATION))
    street.canvas.paint(patch, labels, colour, upward=1.0)


def _marks(street: Street, x: Array, z: Array) -> Array:
    """Lane marks: a broken line in the middle, lines along the kerbs, sometimes a crossing."""
    middle, edges, crossing = -LANE / 2, street.random.random() < 0.6, street.between(6, 60)
    marks = (np.abs(x - middle) < 0.08) & (part(z, 6.0) < 0.53)
    if edges:
        marks |= (np.abs(x - street.left - 0.45) < 0.07) | (np.abs(x - street.right + 0.45) < 0.07)
    if crossing < 30:
        marks |= (z > crossing) & (z < crossing + 3.5) & (part(x, 1.1) < 0.5)
    return marks


def _sunlight(street: Street, x: Array, z: Array) -> Array:
    """Houses on the side of the sun throw a shadow on the ground, with an uneven edge."""
    length = street.between(0, 1.1) * (street.right - street.left)
    edge = length * (0.7 + 0.6 * street.grain.fine(z, z * 0, 9.0))
    inside = np.abs(x - street.wall(street.sun)) < edge
    return np.where(inside, np.float32(0.62), np.float32(1.0))


def draw_houses(street: Street) -> None:
    """Rows of houses on both sides, with gaps where a fence or a hedge stands before the grass; more at the end."""
    for side in (-1, 1):
        z, before = -4.0 + street.between(-4, 0), 0.0
        while z < END:
            width = street.between(7, 16)
            if street.random.random() < 0.3:
                _draw_border(street, side, z, z + width)
                before = 0.0
            else:
                before = _draw_house(street, side, z, z + width, before)
            z += width
    x = -END
    while x < END:  # as far as the lens sees at that distance
        width = street.between(8, 20)
        height = street.between(5, 16)
        _Facade(street, height, 0.85).paint(street.canvas.front(x, x + width, 0, height, END + 8))
        x += width


def _draw_house(street: Street, side: int, near: float, far: float, before: float) -> float:
    """A house whose height is random; the wall towards the camera shows above its neighbour."""
    height, wall = street.between(5, 17), street.wall(side)
    facade = _Facade(street, height, street.light(side))
    facade.paint(street.canvas.side(wall, 0, height, near, far))
    if before < height:
        left, right = sorted((wall, wall + side * 14))
        facade.light = 0.8
        facade.paint(street.canvas.front(left, right, before, height, near))
    return height


class _Facade:
    """A wall with storeys of windows, shops or doors on the ground, and the edge of a roof."""

    def __init__(self, street: Street, height: float, light: float) -> None:
        random, self.street, self.height, self.light = street.random, street, height, light
        self.colour = _WALLS[random.integers(len(_WALLS))] * np.float32(street.between(0.85, 1.15))
        self.roof = _ROOFS[random.integers(len(_ROOFS))]
        self.bay, self.storey = street.between(1.8, 3.2), street.between(2.7, 3.4)
        self.eaves = street.between(0.3, 1.8)
        self.wide, self.tall = street.between(0.35, 0.7), street.between(0.4, 0.6)
        self.shop = random.random() < 0.5
        self.turn = int(random.integers(64))

    def paint(self, patch: Patch | None) -> None:
        if patch is None:
            return
        along, above = part(patch.u, self.bay), part(patch.v, self.storey)
        ground, roof = patch.v < self.storey, patch.v > self.height - self.eaves
        window = (np.abs(along - 0.5) < self.wide / 2) & (np.abs(above - 0.55) < self.tall / 2) & ~ground
        if self.shop:
            opening = (np.abs(along - 0.5) < 0.43) & (np.abs(above - 0.45) < 0.33)
        else:
            opening = (np.abs(along - 0.5) < 0.2) & (above < 0.7)
        window = (window | (opening & ground)) & ~roof
        column, row = patch.u / np.float32(self.bay) + self.turn, patch.v / np.float32(self.storey)
        cell = self.street.grain.fine(column, row, 1.0)
        stone = np.float32(0.88) + np.float32(0.24) * self.street.grain.fine(patch.u, patch.v, 0.37)
        glass = np.float32(0.5) + np.float32(1.1) * cell
        light = np.where(window, glass, stone) * np.float32(self.light)
        colour = tint(floats([self.colour, self.roof, _GLASS]), np.where(window, 2, roof), light)
        top = 0.9 * (patch.v > self.height - 0.5 * self.eaves - 0.15)
        lamp = np.float32(0.35) + np.float32(0.6) * cell
        lit = window * np.where(cell > 0.62, lamp, np.float32(0))
        self.street.canvas.paint(patch, BUILDING, colour, patch.v < self.height, upward=top, lights=lit)


def _draw_border(street: Street, side: int, near: float, far: float) -> None:
    wall, canvas = street.wall(side), street.canvas
    hedge, height = street.random.random() < 0.3, street.between(1.0, 1.7)
    patch = canvas.side(wall, 0, height, near, far)
    if patch is None:
        return
    light, top = street.light(side), 0.9 * (patch.v > height - 0.2)
    if hedge:
        leaves = 0.5 + 0.8 * street.grain.fine(patch.u, patch.v, 0.13)
        canvas.paint(patch, VEGETATION, np.float32(light) * _GRASS * leaves[..., None], upward=top)
        return
    wood = floats([[0.45, 0.32, 0.2], [0.28, 0.34, 0.32], [0.7, 0.7, 0.68]])[street.random.integers(3)]
    slats = (part(patch.u, 0.35) < 0.7) | (part(patch.v, 0.7) < 0.17)
    canvas.paint(patch, FENCE, wood * np.where(slats, light, 0.35 * light)[..., None], upward=top)
