"""State folders: whole or refused with a sentence, whatever happened while they were written."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from support.errors import refused
from testdg import adapt
from testdg.core.state import read_folder, write_folder
from testdg.files import file_checksum
from testdg.methods import Adapter
from testdg.models import VisionModel
from testdg.testing import same_state, stream


def write(folder: Path, version: int) -> None:
    write_folder(folder, {"version": torch.full((3,), version)}, {"version": version})


def read(folder: Path) -> int:
    """The version that a folder holds, the same in both files."""
    tensors, about = read_folder(folder)
    assert tensors["version"].tolist() == [about["version"]] * 3
    return int(about["version"])


def test_tensors_of_every_kind_come_back(tmp_path: Path) -> None:
    base = torch.rand(4, 6)
    given = {
        "float": base, "transposed": base.T, "part": base[1:3], "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3),
        "whole": torch.arange(5), "bytes": torch.arange(5, dtype=torch.uint8), "bool": torch.tensor([True, False]),
        "bf16": base.bfloat16(), "parameter": torch.nn.Parameter(base),
    }  # fmt: skip
    about = {"text": "é", "none": None, "number": 0.1, "list": [1, [2.5]]}
    write_folder(tmp_path / "deep" / "state", given, about)
    tensors, found = read_folder(tmp_path / "deep" / "state")
    assert found == about
    assert tensors.keys() == given.keys()
    for name, value in given.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value.detach())


def test_a_checksum_knows_every_byte_of_a_large_file(tmp_path: Path) -> None:
    path, content = tmp_path / "large", bytearray(40 << 20)
    found = set()
    for place in (None, 0, 20 << 20, len(content) - 1):
        changed = bytearray(content)
        if place is not None:
            changed[place] = 1
        path.write_bytes(changed)
        found.add(file_checksum(path))
    assert len(found) == 4


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no folder": (shutil.rmtree, ("no-state", "state.safetensors")),
    "no tensors": (lambda f: (f / "state.safetensors").unlink(), ("no-state", "state.safetensors")),
    "no values": (lambda f: (f / "state.json").unlink(), ("no-state", "state.json")),
    "cut tensors": (lambda f: cut(f / "state.safetensors"), ("damaged-state",)),
    "empty tensors": (lambda f: (f / "state.safetensors").write_bytes(b""), ("damaged-state",)),
    "noise for tensors": (lambda f: (f / "state.safetensors").write_bytes(b"\xff" * 500), ("damaged-state",)),
    "cut values": (lambda f: cut(f / "state.json"), ("damaged-state",)),
    "noise for values": (lambda f: (f / "state.json").write_bytes(b"\xff\xfe\x80" * 50), ("damaged-state",)),
    "a list for values": (lambda f: (f / "state.json").write_text("[1]"), ("damaged-state",)),
    "a file for the folder": (lambda f: (shutil.rmtree(f), f.write_text("state")), ("no-state",)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_missing_and_damaged_files_are_refused(damage: str, vit: VisionModel, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    adapt(vit, "tent").save(folder)
    harm, expected = DAMAGES[damage]
    harm(folder)
    for call in (read_folder, lambda f: Adapter.load(f, vit)):
        with refused(*expected, folder):
            call(folder)


def test_a_state_that_is_not_of_an_adapter_is_refused(vit: VisionModel, tmp_path: Path) -> None:
    write(tmp_path / "other", 1)
    with refused("no-state", "state.json", "method"):
        Adapter.load(tmp_path / "other", vit)


class Crash(BaseException):
    """The process ends here."""


@contextmanager
def crash_at(step: int) -> Iterator[None]:
    """End the process before its `step`-th change of the disk; a removal may have done half of its work."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                if function is remove:
                    for path in sorted(Path(arguments[0]).glob("*"))[:1]:
                        path.unlink()
                raise Crash
            return function(*arguments, **options)

        return call

    remove = shutil.rmtree
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((shutil, "rmtree"), (os, "fsync"), (Path, "mkdir"), (Path, "rename"), (Path, "write_text")):
            patch.setattr(place, name, counted(getattr(place, name)))
        yield


def write_and_crash(folder: Path, version: int, step: int) -> bool:
    """Write; False where the process ended before that was done."""
    try:
        with crash_at(step):
            write(folder, version)
    except Crash:
        return False
    return True


def test_after_any_crash_a_whole_state_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the disk stays on: only the order of the steps matters
    steps = 0
    for first in range(1, 30):
        for second in range(1, 30):
            folder = tmp_path / f"{first}-{second}" / "state"
            write(folder, 1)
            done = write_and_crash(folder, 2, first)
            known = read(folder)
            assert known == 2 if done else known in (1, 2)
            again = write_and_crash(folder, 3, second)
            assert read(folder) == 3 if again else read(folder) in (known, 3), f"crashes at {first} and {second}"
            write(folder, 4)
            assert read(folder) == 4
            assert [path.name for path in folder.parent.iterdir()] == ["state"]
            if again:
                break
        steps += 1
        if done:
            break
    assert steps > 7  # the crashes did fall into the middle of the writing


def test_a_crash_in_the_first_writing_leaves_no_state(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert not write_and_crash(folder, 1, 6)
    with refused("no-state"):
        read_folder(folder)
    write(folder, 2)
    assert read(folder) == 2


@pytest.mark.parametrize("method", ["tent", "testdg"])
def test_an_adapter_comes_back_from_what_a_crash_left(method: str, vit: VisionModel, tmp_path: Path) -> None:
    adapter, folder = adapt(vit, method), tmp_path / "state"
    for images in stream(adapter, 3):
        adapter(images)
    adapter.save(folder, note={"batches": 3})
    folder.rename(folder.with_name("state.old"))
    (tmp_path / "state.new").mkdir()
    (tmp_path / "state.new" / "state.json").write_text("{")
    again = Adapter.load(folder, vit)
    assert same_state(again, adapter) is None
    again.save(folder)
    assert same_state(Adapter.load(folder, vit), adapter) is None
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
