"""Image files, `<class>/<file>`: listing, choosing a subset, and reading ahead in threads."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from testdg.bounds import read_text
from testdg.data.pictures import DATA_SET_SUFFIXES, IMAGENET_CROP, Crop, read_image
from testdg.data.stream import ImageSource
from testdg.errors import UserError

_AHEAD = 4  # batches that are read in advance
_MOST_WORKERS = 16

F = TypeVar("F")


class FileSource(ImageSource, Generic[F]):
    """Files that `load` converts to tensors of one shape, in order, with read-ahead in threads.

    The files of the next batches are decoded while the model works. `_ahead` has the futures of a window: the requested
    batch and `_AHEAD` more of its size, by index. Each read moves the window: futures outside it are cancelled, so a
    caller that jumps to another place does not wait for old work, and memory is limited to the window. Results do not
    depend on the window. Threads are enough because Pillow decodes without holding Python's global lock.
    """

    def __init__(self, files: Sequence[F], load: Callable[[F], Tensor], threads: ThreadPoolExecutor) -> None:
        self.files, self.load, self.threads = files, load, threads
        self._ahead: dict[int, Future[Tensor]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def read(self, start: int, stop: int) -> Tensor:
        stop = min(stop, len(self))
        window = range(start, min(stop + _AHEAD * (stop - start), len(self)))
        for index in [index for index in self._ahead if index not in window]:
            self._ahead.pop(index).cancel()
        for index in window:
            if index not in self._ahead:
                self._ahead[index] = self.threads.submit(self.load, self.files[index])
        return torch.stack([self._ahead.pop(index).result() for index in range(start, stop)])

    def take(self, indices: Sequence[int]) -> Tensor:
        tensors = self.threads.map(self.load, [self.files[index] for index in indices])
        first = next(tensors)
        # Copying file by file, instead of stacking at the end, avoids storing all tensors twice.
        result = first.new_empty(len(indices), *first.shape)
        for place, one in enumerate(chain([first], tensors)):
            result[place] = one
        return result


def find_unreadable(files: Sequence[F], load: Callable[[F], object], threads: Executor) -> list[F]:
    """Load all files, and return those that cannot be loaded."""

    def is_unreadable(file: F) -> bool:
        try:
            load(file)
        except UserError:
            return True
        return False

    return [file for file, bad in zip(files, threads.map(is_unreadable, files), strict=True) if bad]


class Decoder:
    """Threads that read image files at the size of a crop."""

    def __init__(self, workers: int | None = None, crop: Crop = IMAGENET_CROP) -> None:
        self.crop = crop
        workers = workers or min(os.cpu_count() or 1, _MOST_WORKERS)
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="decoder")

    def read(self, path: Path) -> Tensor:
        return read_image(path, self.crop, "restore the file, or use skip_unreadable")


class ImageFiles(FileSource[Path]):
    """Image files of any size, read as uint8 at the size of the decoder's crop.

    `paths` maps names, `<class>/<file>`, to paths relative to the folder.
    """

    def __init__(self, folder: Path, paths: Mapping[str, str], decoder: Decoder) -> None:
        super().__init__([folder / path for path in paths.values()], decoder.read, decoder.threads)
        self.folder, self.paths, self.names, self.decoder = folder, paths, tuple(paths), decoder

    def chosen(self, names: Sequence[str]) -> "ImageFiles":
        """Some of the files, in this order."""
        return ImageFiles(self.folder, {name: self.paths[name] for name in names}, self.decoder)

    def readable(self) -> tuple["ImageFiles", list[Path]]:
        """The files that can be decoded, at least one, and the paths of the others; decodes all of them."""
        damaged = find_unreadable(self.files, self.load, self.threads)
        if len(damaged) == len(self):
            raise UserError(
                f"{self.folder}: none of the {len(self)} images can be decoded, first {self.names[0]}",
                code="unreadable-picture",
            )
        gone = set(damaged)
        left = [name for name in self.names if self.folder / self.paths[name] not in gone]
        return self.chosen(left), damaged


def list_classes(folder: Path) -> list[str]:
    """Names of the class folders, sorted."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def list_images(folder: Path, inside: str = "") -> dict[str, str]:
    """The images of a folder: paths, `<class>/<inside>/<file>`, by name, `<class>/<file>`; sorted."""
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
    """Like `list_images`, for one folder of images and a file with a line `<file> <class>` for each."""
    expected = "expected <file> <class> per line"
    lines = [line.split() for line in _lines(annotations, expected)]
    for number, words in enumerate(lines, 1):
        if len(words) < 2 or words[1] == ".." or Path(words[1]).name != words[1]:
            raise UserError(f"{annotations}, line {number}: {expected}; got {' '.join(words[:2])!r}", code="wrong-list")
    classes = {file: name for file, name, *_ in lines}
    files = list(filter(is_image, os.listdir(folder)))
    if not files:
        raise UserError(f"{folder} contains no images: expected those listed in {annotations.name}", code="no-images")
    if stray := [file for file in files if file not in classes]:
        raise UserError(
            f"{folder}: {len(stray)} images are not in {annotations.name}, first {min(stray)}",
            code="wrong-list",
        )
    files.sort(key=lambda file: (classes[file], file))
    return {f"{classes[file]}/{file}": file for file in files}


def is_image(name: str) -> bool:
    """Whether a file is not hidden and has one of the suffixes that images of data sets have."""
    return name.lower().endswith(DATA_SET_SUFFIXES) and not name.startswith(".")


def choose_images(folder: Path, names: Sequence[str], subset: str | Path | None) -> list[str]:
    """The images of a subset: "all", "first:N" of each class, or those of a list file."""
    if subset is None or str(subset) == "all":
        return list(names)
    if str(subset).startswith("first:"):
        count = str(subset).removeprefix("first:")
        if not count.isdecimal() or int(count) < 1:
            raise UserError(
                f"subset 'first:{count}' must give the number of images per class, for example 'first:5'",
                code="wrong-subset",
            )
        return [name for group in _by_class(names) for name in group[: int(count)]]
    chosen, present = read_list(Path(subset)), set(names)
    absent = [name for name in chosen if name not in present]
    if absent:
        counted = f"{len(absent)} of its {len(chosen)} images are"
        raise UserError(
            f"list {subset}: {counted} not in {folder}, first {absent[0]}: add them to the folder",
            code="no-such-file",
        )
    return chosen


def spread(names: Sequence[str], count: int | None) -> list[str]:
    """Choose `count` images, taking one of each class in turn; None returns all in their own order."""
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
