"""Sets of picture files: what a set declares, where its folders are, and the manifest of corruptions made here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from testdg.bounds import read_text
from testdg.data.corruptions import EXTRA, SEVERITIES, STANDARD_ORDER, ParameterSet
from testdg.data.image_files import is_image, list_classes, list_images, read_annotated, read_classes
from testdg.data.pictures import Crop
from testdg.errors import UserError
from testdg.files import replace_text

MANIFEST = "testdg-corrupt.json"
MOST_IMAGES = 100_000_000


class Pictures(NamedTuple):
    """The pictures of a folder: their paths in it by name, `<class>/<file>`, sorted."""

    folder: Path
    paths: dict[str, str]


@dataclass(frozen=True)
class PictureSet:
    """The declaration of a set of picture files; "<class>" in a path stands for a folder of each class."""

    title: str
    stored: str
    """Folder of the published corruptions: `<corruption>/<severity>/<class>/<file>` in it."""
    class_count: int
    """Number of classes; 0 for sets of any pictures."""
    crop: Crop
    """The size that pictures are read, corrupted and written at."""
    parameters: ParameterSet
    clean: str = "."
    """Folder of the clean pictures."""
    test: str = "val/<class>"
    train: str = "train/<class>"
    annotations: str = ""
    """File with the class of each test picture, if they are in one folder."""
    groups: tuple[str, ...] = ("",)
    """Folders that may contain the corruptions, by group."""
    severities: tuple[str, ...] = tuple(map(str, SEVERITIES))
    """Folders of the severities, the mildest first."""
    class_lists: tuple[str, ...] = ("classes.txt",)
    """Files that list the classes in the order of a model's outputs; by default, classes are sorted by name."""
    class_names: str = ""
    """File that lists the classes without an order."""

    @property
    def needs(self) -> str:
        """Contents of a data folder, in words."""
        return f"{self.stored}/<corruption>/<severity>/<class>/ or {(Path(self.clean) / self.test).as_posix()}/"

    def is_own(self, folder: Path) -> bool:
        """Whether a folder belongs to this set, by its name or by its list of classes."""
        named = folder.resolve().name in (self.stored, self.clean)
        return named or (bool(self.class_names) and (folder / self.class_names).is_file())

    def takes(self, folder: Path) -> bool:
        """Whether a data folder may itself be the folder of this set: sets may share one, and some take any name."""
        return self.clean == "." or self.is_own(folder)

    def find_stored(self, data: Path) -> Path | None:
        """Find the folder of stored corruptions: in the data folder, or the folder itself."""
        names = (*STANDARD_ORDER, *EXTRA)
        for folder in (data / self.stored, *([data] if self.takes(data) else [])):
            if any(self.corruption_folder(folder, name) for name in names):
                return folder
        return None

    def corruption_folder(self, stored: Path, name: str) -> Path | None:
        """Find the folder of one corruption, in a folder of its group or not, by its folders of severities."""
        for folder in (stored / group / name for group in self.groups):
            if any((folder / severity).is_dir() for severity in self.severities):
                return folder
        return None

    def severity_folder(self, stored: Path, name: str, severity: int) -> Path:
        folder = self.corruption_folder(stored, name)
        if folder is None:
            raise UserError(
                f"{stored / name} is missing: expected <severity>/<class>/<file>.JPEG in it", code="no-such-data"
            )
        if not (folder / self.severities[severity - 1]).is_dir():
            there = ", ".join(name for name in self.severities if (folder / name).is_dir())
            remedy = "complete it, or choose another severity"
            raise UserError(f"{folder} has no severity {severity}, only {there}: {remedy}", code="no-such-data")
        return folder / self.severities[severity - 1]

    def find_clean(self, data: Path) -> Path:
        """Find the folder of the clean pictures: in the data folder, or the folder itself."""
        inside = data / self.clean
        return data if not inside.is_dir() and self.takes(data) else inside

    def split_folder(self, data: Path, split: str) -> Path:
        """The folder of the pictures or classes of a split."""
        return self.find_clean(data) / split.partition("<class>")[0]

    def list_split(self, data: Path, split: str) -> Pictures:
        folder, (_, by_class, inside) = self.split_folder(data, split), split.partition("<class>")
        if not folder.is_dir():
            raise UserError(
                f"{folder} is missing: expected {by_class and '<class>' + inside + '/'}<file>.JPEG in it",
                code="no-such-data",
            )
        if by_class:
            return Pictures(folder, list_images(folder, inside.strip("/")))
        return Pictures(folder, read_annotated(self.find_clean(data) / self.annotations, folder))

    def is_plain(self, data: Path) -> bool:
        """Whether a data folder directly contains the class folders of the test pictures."""
        if self.clean != "." or self.split_folder(data, self.test).is_dir():
            return False
        for name in list_classes(data):
            if name != "frost" and any(is_image(path.name) for path in (data / name).iterdir()):
                return True
        return False

    def list_test(self, data: Path) -> Pictures:
        if self.is_plain(data):
            return Pictures(data, list_images(data))
        return self.list_split(data, self.test)

    def frost_folder(self, data: Path) -> Path:
        """Folder of photographs of frost: in the data folder, or next to it if that contains classes."""
        return (data.resolve().parent if self.is_plain(data) else data) / "frost"

    def find_class_list(self, data: Path) -> Path | None:
        """Find the file that lists the classes, with the clean pictures or the stored corruptions."""
        folders = list(filter(None, (self.find_clean(data), self.find_stored(data))))
        files = [folder / name for folder in folders for name in self.class_lists]
        files += [folder / self.class_names for folder in folders if self.class_names]
        return next((file for file in files if file.is_file()), None)

    def find_classes(self, data: Path) -> tuple[str, ...]:
        """The classes in the order of a model's outputs: those of the list, or all class folders, sorted."""
        listed, stored = self.find_class_list(data), self.find_stored(data)
        if listed is not None:
            classes = read_classes(listed)
            return tuple(sorted(classes) if listed.name == self.class_names else classes)
        if self.is_plain(data):
            return tuple(list_classes(data))
        folders = [self.split_folder(data, split) for split in (self.test, self.train) if "<class>" in split]
        if stored is not None:
            for folder in filter(None, (self.corruption_folder(stored, name) for name in STANDARD_ORDER)):
                folders.append([path for level in self.severities if (path := folder / level).is_dir()][-1])
        names: set[str] = set()
        for folder in filter(Path.is_dir, folders):
            names.update(list_classes(folder))
        return tuple(sorted(names))


class Manifest(Struct, kw_only=True):
    """What the corruptions of a folder were made from, and which of them are complete."""

    generator: str = "testdg"
    version: str
    seed: int
    frost: str
    source_fingerprint: str = ""
    """Fingerprint of the clean images."""
    images: Annotated[int, Meta(ge=1, le=MOST_IMAGES)] | None = None
    severities: list[Annotated[int, Meta(ge=1, le=5)]] | None = None
    corruptions: list[str] = []
    parameters: str = ""

    def write(self, folder: Path) -> None:
        content = msgspec.json.format(msgspec.json.encode(self), indent=2)
        replace_text(folder / MANIFEST, content.decode() + "\n")


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None if there is none."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_text(path), type=Manifest)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): make the set again", code="damaged-file") from error


def stored_origin(folder: Path, otherwise: str) -> str:
    """The origin of stored corruptions in words, from their manifest if there is one."""
    made = read_manifest(folder)
    if made is None:
        return otherwise
    return f"generated by testdg {made.version}, seed {made.seed}, frost {made.frost}"
