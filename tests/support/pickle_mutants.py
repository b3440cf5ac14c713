"""Damages pickled batches at random and reads them: run as a program, so that a crash is an exit code.

    python pickle_mutants.py COUNT SEED

prints how many mutants were refused and how many were read; of those that were read, every array is looked at.
"""

import pickle
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from testdg.data.pickled import read_pickle
from testdg.errors import UserError

TOKENS = (
    b"u1", b"O8", b"V8", b"U4", b"i8", b"f8", b"M8", b"|", b"<", b">", b"(", b"t", b"b", b"R", b"0", b"2", b"N", b"}",
    b"]", b"u", b"e", b"h\x00", b"h\x01", b"h\x05", b"\x85", b"\x86", b"\x87", b"\x88", b"\x89", b"\x93", b"\x94",
    b"\x81", b"q\x00", b"r\xff\xff\xff\x7f", b"J\xff\xff\xff\xff", b"M\x00\x10", b"K\x3f", b"T\xff\xff\xff\x7f",
    b"\x8e\xff\xff\xff\xff\xff\x00\x00\x00", b"\x96\xff\xff\xff\xff\xff\x00\x00\x00", b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"cos\nsystem\n", b".",
)  # fmt: skip


def python_2_batch(images: int = 2) -> bytes:
    """A batch as Python 2 wrote it, which is how CIFAR is published: its texts are bytes."""
    data = bytes(range(256)) * 12 * images
    kind = b"cnumpy\ndtype\nq\x0bU\x02u1q\x0cK\x00K\x01\x87q\rRq\x0e"
    kind += b"(K\x03U\x01|q\x0fNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85U\x01b\x87Rq\x08"
    state = b"(K\x01K" + bytes([images]) + b"M\x00\x0c\x86" + kind + b"\x89T" + len(data).to_bytes(4, "little") + data
    labels = b"U\x06labelsq\x04]q\x05(" + b"".join(b"K" + bytes([n]) for n in range(images)) + b"e"
    return b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x04testq\x03" + labels + b"U\x04dataq\x10" + array + state + b"tbu."


def batches() -> list[bytes]:
    """The same batch as different Pythons write it."""
    data = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    content = {b"batch_label": b"test", b"labels": [3, 4], b"data": data, b"filenames": [b"a.png", b"b.png"]}
    return [python_2_batch(), *(pickle.dumps(content, protocol) for protocol in (2, 3, 4, 5))]


def mutant(rng: random.Random, content: bytes) -> bytes:
    """Change a few places outside of the pixels, or a few anywhere."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        edge = 400  # instructions are at both ends, pixels in between
        near = rng.randrange(edge) if rng.random() < 0.5 else len(changed) - 1 - rng.randrange(edge)
        place = max(0, min(near if rng.random() < 0.9 else rng.randrange(len(changed)), len(changed) - 1))
        how = rng.randrange(6)
        if how == 0:
            changed[place] = rng.randrange(256)
        elif how == 1:
            changed[place] ^= 1 << rng.randrange(8)
        elif how == 2:
            del changed[place : place + rng.randrange(1, 5)]
        elif how == 3:
            changed[place:place] = rng.choice(TOKENS)
        elif how == 4:
            token = rng.choice(TOKENS)
            changed[place : place + len(token)] = token
        else:
            start = rng.randrange(len(changed))
            changed[place:place] = changed[start : start + rng.randrange(1, 40)]
        if not changed:
            break
    return bytes(changed)


def arrays(value: Any) -> list[Any]:
    """The arrays in what was read."""
    if isinstance(value, np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [found for part in parts for found in ([part] if isinstance(part, np.ndarray) else [])]


def check(array: Any, content: bytes) -> None:
    """An array is whole numbers, and each of its bytes is one of the file."""
    assert array.dtype.kind in "iu", array.dtype
    assert not array.dtype.hasobject
    found = array.tobytes("A")
    assert found in content or found.decode("latin1").encode() in content, f"{array.shape} of other bytes"


def main(count: int, seed: int) -> None:
    """Read mutants."""
    rng, originals = random.Random(seed), batches()
    refused = seen = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test_batch"
        for _ in range(count):
            content = mutant(rng, rng.choice(originals))
            path.write_bytes(content)
            try:
                found = read_pickle(path)
            except UserError:
                refused += 1
                continue
            for array in arrays(found):
                check(array, content)
                seen += 1
    print(f"{count} mutants, {refused} refused, {seen} arrays")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
