"""Street scenes drawn by code: pictures, label maps and geometry."""

from testdg.data.streets.classes import CLASSES, PALETTE
from testdg.data.streets.scene import HEIGHT, WIDTH, Scenes, draw_scenes

__all__ = ["CLASSES", "HEIGHT", "PALETTE", "WIDTH", "Scenes", "draw_scenes"]
