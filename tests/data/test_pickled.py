"""Pickled batches from strangers: nothing is executed, nothing crashes, and no byte comes from elsewhere."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pickle_mutants import python_2_batch

from testdg.data.cifar import read_batch
from testdg.data.pickled import read_pickle
from testdg.errors import UserError

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


HOSTILE = {
    "pointers as objects": (
        dictionary(ARRAY + b"(K\x01K\x01\x85" + OBJECTS + b"\x89" + POINTERS + b"tb"),
        "an array that holds no whole numbers",
    ),
    "a type with fields": (
        dictionary(BYTES + b"(K\x03U\x01|NU\x01fNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"),
        "an array of an unknown type",
    ),
    "an array by its shape": (dictionary(b"cnumpy\nndarray\nK\x40\x85\x85R"), "an array without its numbers"),
    "an array that is never filled": (dictionary(ARRAY), "an array without its numbers"),
    "an array larger than its bytes": (
        dictionary(ARRAY + b"(K\x01M\xff\xff\x85" + BYTES + b"\x89" + POINTERS + b"tb"),
        "an array of 8 bytes, which do not fill its shape",
    ),
    "negative sides": (
        dictionary(ARRAY + b"(K\x01J\xfe\xff\xff\xffJ\xfc\xff\xff\xff\x86" + BYTES + b"\x89" + POINTERS + b"tb"),
        "an array of no shape",
    ),
    "an array over its buffer": (
        b"\x80\x05}X\x04\x00\x00\x00datacnumpy.core.numeric\n_frombuffer\n(\x96\x08\x00\x00\x00\x00\x00\x00\x00AAAAAAAA"
        + BYTES + b"K\x40\x85X\x01\x00\x00\x00CtRs.",
        "an array of 8 bytes, which do not fill its shape",
    ),
    "a number for the memo": (b"\x80\x02}r\xff\xff\xff\x7f.", ""),
    "a key that takes ages": (b"\x80\x02}K\x01\x85" + b"q\x00h\x00\x86" * 60 + b"K\x01s.", "a tuple as a key"),
    "a name that is changed": (dictionary(b"c_codecs\nencode\n}b"), "changes what cannot be changed"),
    "a name with a method": (dictionary(b"cnumpy\nndarray.tofile\n"), "asks for numpy.ndarray.tofile, which is not"),
    "a name for the terminal": (dictionary(b"cos\x1b[2J\nsystem\n"), r"asks for 'os\x1b[2J.system', which is not"),
    "a new object": (dictionary(b"cnumpy\nndarray\n)\x81"), "asks for the instruction NEWOBJ"),
    "a length of terabytes": (dictionary(b"\x8e\xff\xff\xff\xff\xff\x0f\x00\x00"), "damaged"),
    "nothing to take": (b"\x80\x02\x87.", "takes a value where there is none"),
    "too many steps": (b"\x80\x02]q\x00" + b"h\x00" * 1_100_000 + b".", "more than 1000000 instructions"),
}  # fmt: skip

READ = """
import resource, sys
from pathlib import Path
from testdg.data.pickled import read_pickle
from testdg.errors import UserError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        print(path.name, repr(read_pickle(path)))
    except UserError as error:
        print(path.name, error)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process with four gigabytes says of each hostile file; it must live to read them all."""
    folder = tmp_path_factory.mktemp("hostile")
    for number, (content, _) in enumerate(HOSTILE.values()):
        (folder / f"{number:02d}").write_bytes(content)
    command = [sys.executable, "-c", READ, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(zip(HOSTILE, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_batch_is_one_sentence(name: str, answers: dict[str, str]) -> None:
    assert HOSTILE[name][1] in answers[name]


def test_mutants_of_a_batch_neither_crash_nor_show_other_memory() -> None:
    command = [sys.executable, str(Path(__file__).with_name("pickle_mutants.py")), "4000", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    count, refused, seen = (int(part.split()[0]) for part in done.stdout.split(", "))
    assert count == 4000
    assert refused > 1000
    assert seen > 500


@pytest.mark.parametrize("labels", [[10**30, 1], [True, False], [-(10**5000), 1]])
def test_labels_beyond_all_numbers_are_refused(tmp_path: Path, labels: list[int]) -> None:
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": labels}
    with pytest.raises(UserError, match="labels must be"):
        read_batch(write(tmp_path, pickle.dumps(content, 2)))
