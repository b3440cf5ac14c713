"""Image files, `<class>/<file>`: listing, choosing, and reading them ahead of the stream."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby, islice, zip_longest
from pathlib import Path

import torch
from torch import Tensor

from testdg.bounds import read_text
from testdg.data.decoder import DATA_SET_SUFFIXES, Decoder, read_levels
from testdg.errors import UserError

_AHEAD = 4  # batches that are decoded in advance

Pieces = list[Future[list[bytes | str]]]


class ImageFiles:
    """Image files of any size, read as uint8 at the size of the decoder's crop.

    `paths` are relative to the folder, by name, `<class>/<file>`. Read-ahead: `read` requests the next ranges of the
    same length as well and stores their futures by range. A stream that asks for one range after the other finds them
    done; any other range means that the caller has moved, so all futures are cancelled and reading starts there.
    """

    def __init__(self, folder: Path, paths: Mapping[str, str], decoder: Decoder) -> None:
        self.folder, self.paths, self.names, self.decoder = folder, paths, tuple(paths), decoder
        self._ahead: dict[range, Pieces] = {}

    def __len__(self) -> int:
        return len(self.names)

    def read(self, start: int, stop: int) -> Tensor:
        span = range(start, min(stop, len(self)))
        pieces = self._ahead.pop(span, None)
        if pieces is None:
            self._forget()
            pieces = self._submit(span)
        for number in range(_AHEAD):
            begin = span.stop + number * len(span)
            following = range(begin, min(begin + len(span), len(self)))
            if following and following not in self._ahead:
                self._ahead[following] = self._submit(following)
        return self._gather(span, pieces)

    def take(self, indices: Sequence[int]) -> Tensor:
        return self._gather(indices, self._submit(indices))

    def chosen(self, names: Sequence[str]) -> ImageFiles:
        """Some of the files, in this order."""
        return ImageFiles(self.folder, {name: self.paths[name] for name in names}, self.decoder)

    def unreadable(self) -> list[str]:
        """Names of the files that cannot be decoded; decodes all of them."""
        answers = _answers(self._submit(range(len(self)), pixels=False))
        return [name for name, answer in zip(self.names, answers, strict=True) if isinstance(answer, str)]

    def without(self, names: Sequence[str]) -> ImageFiles:
        """The files without some; at least one must remain."""
        gone = set(names)
        left = [name for name in self.names if name not in gone]
        if not left:
            raise UserError(
                f"{self.folder}: none of its {len(self)} images can be decoded, first {self.names[0]}",
                code="unreadable-picture",
            )
        return self.chosen(left)

    def path(self, name: str) -> Path:
        return self.folder / self.paths[name]

    def _submit(self, indices: Sequence[int], *, pixels: bool = True) -> Pieces:
        return self.decoder.submit([str(self.path(self.names[index])) for index in indices], pixels=pixels)

    def _forget(self) -> None:
        for pieces in self._ahead.values():
            for piece in pieces:
                piece.cancel()
        self._ahead.clear()

    def _gather(self, indices: Sequence[int], pieces: Pieces) -> Tensor:
        answers = _answers(pieces)
        for index, answer in zip(indices, answers, strict=True):
            if isinstance(answer, str):
                self._forget()
                remedy = "restore the file, or use skip_unreadable"
                raise UserError(
                    f"{self.path(self.names[index])} cannot be read as an image: {answer}; {remedy}",
                    code="unreadable-picture",
                )
        pixels = bytearray().join(answer for answer in answers if isinstance(answer, bytes))
        rows = torch.frombuffer(pixels, dtype=torch.uint8) if pixels else torch.empty(0, dtype=torch.uint8)
        return rows.view(-1, 3, self.decoder.crop.side, self.decoder.crop.side)


def _answers(pieces: Pieces) -> list[bytes | str]:
    return [answer for piece in pieces for answer in piece.result()]


def list_classes(folder: Path) -> list[str]:
    """Names of the class folders, sorted."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def list_images(folder: Path, inside: str = "") -> dict[str, str]:
    """Paths in a folder, `<class>/<inside>/<file>`, of its images by name, `<class>/<file>`; sorted."""
    paths: dict[str, str] = {}
    for name in list_classes(folder):
        middle = f"{name}/{inside}/" if inside else f"{name}/"
        files = os.listdir(folder / middle) if (folder / middle).is_dir() else []
        paths |= {f"{name}/{file}": middle + file for file in sorted(filter(is_image, files))}
    if not paths:
        raise UserError(
            f"{folder} contains no images: expected <class>/{inside and inside + '/'}<file>.JPEG",
            code="no-images",
        )
    return paths


def read_annotated(annotations: Path, folder: Path) -> dict[str, str]:
    """Like `list_images`, for images in one folder with a file of their classes, `<file> <class>` per line."""
    expected = "expected <file> <class> per line"
    lines = [line.split() for line in _lines(annotations, expected)]
    for number, words in enumerate(lines, 1):
        if len(words) < 2 or words[1] == ".." or Path(words[1]).name != words[1]:
            raise UserError(f"{annotations}, line {number}: {expected}; got {' '.join(words[:2])!r}", code="wrong-list")
    classes = {file: name for file, name, *_ in lines}
    files = list(filter(is_image, os.listdir(folder)))
    if not files:
        raise UserError(f"{folder} contains no images: expected those of {annotations.name}", code="no-images")
    if stray := [file for file in files if file not in classes]:
        raise UserError(
            f"{folder}: {len(stray)} images are not in {annotations.name}, first {min(stray)}",
            code="wrong-list",
        )
    return {f"{name}/{file}": file for name, file in sorted((classes[file], file) for file in files)}


def is_image(name: str) -> bool:
    """Whether a name has the suffix of a data set's image and is not hidden."""
    return name.lower().endswith(DATA_SET_SUFFIXES) and not name.startswith(".")


def find_images(folder: Path) -> list[str]:
    """Paths of all images in a folder and its subfolders, sorted."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name one with images in it", code="no-such-folder")
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if is_image(path.name))


def read_image(path: Path) -> Tensor:
    """One image at its own size, (3, H, W) in [0, 1]."""
    return torch.from_numpy(read_levels(path)).permute(2, 0, 1).float().div_(255)


def choose_images(folder: Path, names: Sequence[str], subset: str | Path | None) -> list[str]:
    """The images of a subset: "all", "first:N" of each class, or those of a list file."""
    if subset is None or str(subset) == "all":
        return list(names)
    if str(subset).startswith("first:"):
        count = str(subset).removeprefix("first:")
        if not count.isdecimal() or int(count) < 1:
            raise UserError(
                f"subset 'first:{count}' must name how many images of each class, for example 'first:5'",
                code="wrong-subset",
            )
        return [name for group in _by_class(names) for name in group[: int(count)]]
    chosen, present = read_list(Path(subset)), set(names)
    absent = [name for name in chosen if name not in present]
    if absent:
        counted = f"{len(absent)} of {len(chosen)} images that are"
        raise UserError(
            f"list {subset} names {counted} not in {folder}, first {absent[0]}: complete the folder",
            code="no-such-file",
        )
    return chosen


def spread(names: Sequence[str], count: int | None) -> list[str]:
    """Take `count` images, one of each class in turn (None: all, in their order)."""
    if count is None:
        return list(names)
    rounds = zip_longest(*_by_class(names))
    return list(islice((name for names in rounds for name in names if name is not None), count))


def _by_class(names: Sequence[str]) -> list[list[str]]:
    return [list(group) for _, group in groupby(names, key=lambda name: name.split("/")[0])]


def read_list(path: Path) -> list[str]:
    """Read a list of images, one `<class>/<file>` per line."""
    names = _lines(path, "expected 'all', 'first:N' or a list file with one <class>/<file> per line")
    for number, name in enumerate(names, 1):
        if name.count("/") != 1 or ".." in name.split("/"):
            raise UserError(f"{path}, line {number}: expected <class>/<file>; got {name!r}", code="wrong-list")
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise UserError(f"{path} names {twice} twice: name every image once", code="duplicate")
    return names


def read_classes(path: Path) -> list[str]:
    """Read a list of classes: the first word of each line, in the order of the model's outputs."""
    classes = [line.split()[0] for line in _lines(path, "expected one class per line")]
    if len(set(classes)) < len(classes):
        raise UserError(f"{path} names a class twice: name every class once", code="duplicate")
    return classes


def _lines(path: Path, expected: str) -> list[str]:
    lines = read_lines(path, expected)
    if not lines:
        raise UserError(f"{path} is empty: {expected}", code="empty-list")
    return lines


def read_lines(path: Path, expected: str) -> list[str]:
    """The non-empty lines of a file."""
    try:
        return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable list: {expected}", code="unreadable-list") from error
