"""Street scenes drawn by code: pictures, label maps and geometry."""

from testdg.data.streets.scene import HEIGHT, WIDTH, Scenes, draw_scenes
from testdg.data.streets.street import CLASSES, PALETTE

__all__ = ["CLASSES", "HEIGHT", "PALETTE", "WIDTH", "Scenes", "draw_scenes"]
