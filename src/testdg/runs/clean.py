"""Clean images of the source, from a folder: what methods are aligned to, warm up with, and what a guard asks about."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from testdg.core.guard.health import IMAGES
from testdg.data.frames import PictureFolder
from testdg.data.pictures import Unreadable, decode
from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.models.canvas import Canvas
from testdg.runs.source import BATCH

_PROBED = 0  # seed of the choice of a probe


class SourceFolder:
    """A folder of clean pictures, in any tree; `<class>/<file>` where a method needs labels."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        if not path.is_dir():
            raise UserError(f"--source {path} is not a folder: name one with clean pictures in it")
        self.path, self.names = path, list(names)
        self.files = [frame.file for frame in PictureFolder(path) if frame is not None]

    def batches(self, adapter: Adapter) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        """As many as a method wants to learn from, drawn by its seed, with labels where it needs them."""
        wanted, size = adapter.source_images(), BATCH[adapter.model.task]
        if len(self.files) < adapter.least_source_images:
            least = adapter.least_source_images
            raise UserError(f"{self.path} holds {len(self.files)} pictures; {adapter.name} needs at least {least}")
        if adapter.source_labels and adapter.model.task == "segmentation":
            raise UserError(f"{adapter.name} needs label maps, which --source cannot give: choose another method")
        labels = self._labels() if adapter.source_labels else None
        for files, images in self._read(adapter, wanted, size, adapter.settings.seed):
            yield images if labels is None else (images, torch.tensor([labels[file] for file in files]))

    def probe(self, adapter: Adapter) -> Tensor:
        """A few pictures of one size for a guard."""
        read = self._read(adapter, IMAGES[adapter.model.task], IMAGES[adapter.model.task], _PROBED)
        return next(images for _, images in read)

    def _read(self, adapter: Adapter, wanted: int, size: int, seed: int) -> Iterator[tuple[list[str], Tensor]]:
        """Pictures drawn by a seed, in rounds where there are too few; those that cannot be read are left out."""
        canvas, channels = Canvas(adapter.model.preprocessing), adapter.model.channels
        generator, left = torch.Generator().manual_seed(seed), wanted
        while left > 0:
            before = left
            order = torch.randperm(len(self.files), generator=generator).tolist()
            for start in range(0, len(order), size):
                files = [self.files[number] for number in order[start : start + min(size, left)]]
                read = [(file, image) for file in files if (image := self._one(file, channels, canvas)) is not None]
                for places, images in canvas.batches([image for _, image in read]):
                    yield [read[place][0] for place in places], images
                left -= len(read)
                if left <= 0:
                    return
            if left == before:
                raise UserError(f"none of the {len(self.files)} pictures of --source {self.path} can be read")

    def _one(self, file: str, channels: int, canvas: Canvas) -> Tensor | None:
        try:
            return canvas.shrink(decode(self.path / file, channels))
        except Unreadable:
            return None

    def _labels(self) -> dict[str, int]:
        """The class of each picture, by the folder that it lies in: names of classes, or as many as there are."""
        folders = sorted({file.split("/")[0] for file in self.files if "/" in file})
        known = {name: number for number, name in enumerate(self.names)}
        if not set(folders) <= known.keys():
            if len(folders) != len(self.names):
                told = f"expected <class>/<file> for the {len(self.names)} classes; got {len(folders)} folders"
                raise UserError(f"--source {self.path} has no labels, which the method needs: {told}")
            known = {name: number for number, name in enumerate(folders)}
        loose = [file for file in self.files if "/" not in file]
        if loose:
            raise UserError(f"--source {self.path}: {loose[0]} lies in no folder of a class, which the method needs")
        return {file: known[file.split("/")[0]] for file in self.files}
