"""Where an ImageNet folder keeps what: clean images, stored corruptions, the list of classes."""

from __future__ import annotations

from pathlib import Path

from testdg.data.corruptions import EXTRA, SEVERITIES, STANDARD_ORDER
from testdg.data.image_files import list_classes, read_classes
from testdg.errors import UserError

STORED_FOLDER = "ImageNet-C"
CLASS_LISTS = ("classes.txt", "LOC_synset_mapping.txt")
GROUPS = ("", "noise", "blur", "weather", "digital", "extra")  # the archives of the published set unpack into these


def find_stored(data: Path) -> Path | None:
    """Find the folder of stored corruptions: inside the data folder, or the folder itself."""
    names = (*STANDARD_ORDER, *EXTRA)
    folders = (data / STORED_FOLDER, data)
    return next((f for f in folders if any(corruption_folder(f, name) for name in names)), None)


def corruption_folder(stored: Path, name: str) -> Path | None:
    """Find the folder of one corruption, in its group's folder or not: it has a folder for some severity."""
    folders = (stored / group / name for group in GROUPS)
    return next((f for f in folders if any((f / str(severity)).is_dir() for severity in SEVERITIES)), None)


def severity_folder(stored: Path, name: str, severity: int) -> Path:
    """Find the folder of one corruption at one severity."""
    folder = corruption_folder(stored, name)
    if folder is None:
        raise UserError(f"{stored / name} is missing: expected <severity>/<class>/<file>.JPEG in it")
    if not (folder / str(severity)).is_dir():
        there = ", ".join(str(s) for s in SEVERITIES if (folder / str(s)).is_dir())
        raise UserError(f"{folder} has no severity {severity}, only {there}: complete it, or choose another severity")
    return folder / str(severity)


def find_class_list(data: Path, stored: Path | None) -> Path | None:
    """Find the file that lists the classes, in the data folder or with the stored corruptions."""
    folders = [data] if stored is None else [data, stored]
    return next((f / name for f in folders for name in CLASS_LISTS if (f / name).is_file()), None)


def find_classes(data: Path, stored: Path | None) -> tuple[str, ...]:
    """The classes in the order of a model's outputs: those of the list, else all class folders, sorted."""
    listed = find_class_list(data, stored)
    if listed is not None:
        return tuple(read_classes(listed))
    folders = [folder for folder in (data / "val", data / "train") if folder.is_dir()]
    corruptions = [corruption_folder(stored, name) for name in STANDARD_ORDER] if stored is not None else []
    folders += [max(folder.glob("[1-5]")) for folder in corruptions if folder is not None]
    return tuple(sorted({name for folder in folders for name in list_classes(folder)}))
