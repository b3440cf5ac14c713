"""Pickled batches from strangers: nothing is executed, nothing crashes, and no byte comes from elsewhere."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import pickle_mutants
from support.errors import refused
from support.pickle_mutants import python_2_batch
from testdg.data.cifar import read_batch
from testdg.data.pickled import read_pickle

ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
OBJECTS = b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
BYTES = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
POINTERS = b"U\x08" + b"A" * 8


def write(folder: Path, content: bytes) -> Path:
    path = folder / "test_batch"
    path.write_bytes(content)
    return path


def dictionary(value: bytes) -> bytes:
    return b"\x80\x02}U\x04data" + value + b"s."


def test_the_published_form_is_read(tmp_path: Path) -> None:
    samples = read_batch(write(tmp_path, python_2_batch(3)))
    assert samples.images.flatten().tolist() == list(range(256)) * 36
    assert samples.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("kind", ["u1", "i1", "<i2", ">i4", ">u2", "<u8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_whole_numbers_are_read_as_pickle_does(tmp_path: Path, protocol: int, kind: str, order: Any) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4).astype(kind), order=order)
    found = read_pickle(write(tmp_path, pickle.dumps({"x": array, "again": array}, protocol)))
    assert found["x"].dtype == array.dtype
    assert np.array_equal(found["x"], array)
    assert np.array_equal(found["again"], array)


def build(target: bytes, state: bytes) -> bytes:
    return dictionary(target + b"(" + state + b"tb")


DAMAGED, UNSAFE = "damaged-file", "unsafe-file"
TUPLES = b"q\x00h\x00\x86" * 60
FRAMES = b"\x95\xff\xff\xff\xff\xff\x0f\x00\x00"
HOSTILE = {
    "pointers as objects": (build(ARRAY, b"K\x01K\x01\x85" + OBJECTS + b"\x89" + POINTERS), DAMAGED),
    "a type with fields": (build(BYTES, b"K\x03U\x01|NU\x01fNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00"), DAMAGED),
    "an array by its shape": (dictionary(b"cnumpy\nndarray\nK\x40\x85\x85R"), DAMAGED),
    "an array without values": (dictionary(ARRAY), DAMAGED),
    "an array larger than its bytes": (build(ARRAY, b"K\x01M\xff\xff\x85" + BYTES + b"\x89" + POINTERS), DAMAGED),
    "negative sides": (
        build(ARRAY, b"K\x01J\xfe\xff\xff\xffJ\xfc\xff\xff\xff\x86" + BYTES + b"\x89" + POINTERS),
        DAMAGED,
    ),
    "a shape beyond all memory": (build(ARRAY, b"K\x01" + b"J\xff\xff\xff\x0f" * 4 + b"t" + BYTES), DAMAGED),
    "an array over its buffer": (
        b"\x80\x05}X\x04\x00\x00\x00datacnumpy.core.numeric\n_frombuffer\n(\x96\x08\x00\x00\x00\x00\x00\x00\x00AAAAAAAA"
        + BYTES + b"K\x40\x85X\x01\x00\x00\x00CtRs.",
        DAMAGED,
    ),
    "a memo of billions": (b"\x80\x02}r\xff\xff\xff\x7f0.", UNSAFE),
    "a memo entry that is missing": (dictionary(b"h\x05"), DAMAGED),
    "a key that takes ages to hash": (b"\x80\x02}K\x01\x85" + TUPLES + b"K\x01s.", DAMAGED),
    "a type that takes ages to hash": (dictionary(b"cnumpy\ndtype\nK\x01\x85" + TUPLES + b"\x85R"), DAMAGED),
    "an order that takes ages to hash": (build(BYTES, b"K\x03K\x01\x85" + TUPLES + b"NNN"), DAMAGED),
    "a set of tuples": (b"\x80\x04\x8f(K\x01\x85" + TUPLES + b"\x90.", UNSAFE),
    "a function with a state": (dictionary(b"c_codecs\nencode\n}b"), DAMAGED),
    "a class with a state": (dictionary(b"cnumpy\ndtype\nN}U\x01aK\x01s\x86b"), DAMAGED),
    "a list with a state": (dictionary(b"]}b"), DAMAGED),
    "a list with a key": (dictionary(b"](U\x01aK\x01u"), DAMAGED),
    "a dotted name": (dictionary(b"cnumpy\nndarray.tofile\n"), UNSAFE),
    "a name for the terminal": (dictionary(b"cos\x1b[2J\nsystem\n"), UNSAFE),
    "a name that is a list": (b"\x80\x04}U\x04data]]\x93s.", DAMAGED),
    "a new object": (dictionary(b"cnumpy\nndarray\n)\x81"), UNSAFE),
    "an instance": (dictionary(b"(ios\nsystem\n"), UNSAFE),
    "a reference to elsewhere": (dictionary(b"Pabc\n"), UNSAFE),
    "a registered extension": (dictionary(b"\x82\x01"), UNSAFE),
    "a call of a text": (dictionary(b"U\x01a)R"), DAMAGED),
    "a length of terabytes": (dictionary(b"\x8e\xff\xff\xff\xff\xff\x0f\x00\x00"), DAMAGED),
    "a byte array of terabytes": (dictionary(b"\x96\xff\xff\xff\xff\xff\x0f\x00\x00"), DAMAGED),
    "a frame of terabytes": (b"\x80\x04" + FRAMES + b"}", DAMAGED),
    "an empty stack": (b"\x80\x02\x87.", DAMAGED),
    "no mark": (b"\x80\x02}u.", DAMAGED),
    "lists in lists": (dictionary(b"]" * 400_000 + b"a" * 399_999), None),
    "too many instructions": (b"\x80\x02]q\x00" + b"h\x00" * 1_100_000 + b".", DAMAGED),
}  # fmt: skip

READ = """
import resource, sys
from pathlib import Path
from testdg.data.pickled import read_pickle
from testdg.errors import UserError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        read_pickle(path)
        print(None)
    except UserError as error:
        assert path.name in str(error), str(error)
        assert str(error).isprintable(), repr(str(error))
        print(error.code)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Codes of the errors in a process with four gigabytes of memory, which must survive all files."""
    folder = tmp_path_factory.mktemp("hostile")
    for number, (content, _) in enumerate(HOSTILE.values()):
        (folder / f"{number:02d}").write_bytes(content)
    command = [sys.executable, "-c", READ, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(zip(HOSTILE, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_batch_is_refused_without_a_crash(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == str(HOSTILE[name][1])


def test_mutants_of_a_batch_neither_crash_nor_show_other_memory() -> None:
    command = [sys.executable, pickle_mutants.__file__, "4000", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    count, failed, seen = (int(part.split()[0]) for part in done.stdout.split(", "))
    assert count == 4000
    assert failed > 1000
    assert seen > 500


@pytest.mark.parametrize("labels", [[10**30, 1], [True, False], [-(10**5000), 1]])
def test_labels_beyond_all_numbers_are_refused(tmp_path: Path, labels: list[int]) -> None:
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": labels}
    with refused("wrong-labels", tmp_path):
        read_batch(write(tmp_path, pickle.dumps(content, 2)))
