"""A folder of frames becomes a table of predictions: `python examples/folder_of_frames.py [FRAMES MODEL CLEAN]`.

Without folders of yours, frames of digits-c in increasing fog are written first, with a small model.
"""

import sys
from collections import Counter
from pathlib import Path

from PIL import Image
from torch import Tensor

import testdg
from testdg.runs import source_model


def write(images: Tensor, folder: Path, first: int = 0) -> None:
    """Write images in [0, 1] as PNG files, numbered in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images, first):
        pixels = (image.permute(1, 2, 0) * 255).round().byte()
        Image.fromarray(pixels.numpy()).save(folder / f"{number:05}.png")


def make_folders(place: Path) -> list[Path]:
    """Frames that get foggy, a model folder, and clean pictures of the kind that it was trained on."""
    for severity in (1, 3, 5):
        foggy = testdg.load_benchmark("digits-c", images=60, domains=["fog"], severity=severity)
        for batch in foggy.stream(batch_size=60):
            write(batch.images, place / "frames", first=1000 * severity)
    write(foggy.train().images[:128] / 255, place / "clean")
    source_model(foggy).save(place / "model")
    return [place / name for name in ("frames", "model", "clean")]


frames, model, clean = map(Path, sys.argv[1:]) if len(sys.argv) > 1 else make_folders(Path("frames-example"))
stream = testdg.adapt_stream(model, frames, source=clean, batch_size=20)
changed = Counter()
for prediction in stream:
    changed[prediction.class_name != prediction.source_class_name] += 1
    if prediction.change:
        print(f"{prediction.file}: the conditions have changed")
print(f"{changed.total()} frames, {changed[True]} of them with another class than without adaptation")
print(f"{len(stream.skipped)} could not be read")
stream.adapter.save("frames-state")  # testdg.adapt_stream(..., load_state="frames-state") continues from here
