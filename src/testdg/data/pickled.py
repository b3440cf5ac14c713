"""A reader of pickled dictionaries of plain values and arrays of whole numbers, which executes nothing.

The reader is Python's own unpickler with three allow lists: instructions, names, and types of keys. The names that
arrays need stand for small classes of this module, so nothing of numpy is called with values of the file. An array is
made from bytes that are there, after its type and shape have been checked against their number.

It is the unpickler written in Python, not the one in C: its memo is a dictionary, so an index of four billion does not
allocate a table of that size, and it never allocates memory for more bytes than the file has.
"""

import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from testdg.bounds import MOST_ARRAY, check_file
from testdg.errors import UserError, visible

MOST_INSTRUCTIONS = 1_000_000  # the largest part of CIFAR has 300 thousand
MOST_AXES = 8

_DTYPES = {f"{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8)}
_INSTRUCTIONS = (
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4",
    "BINFLOAT", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL",
    "STACK_GLOBAL", "REDUCE",
)  # fmt: skip


class _Dtype:
    """Stands for numpy's type of numbers."""

    def __init__(self, code: str | bytes, *ignored: object) -> None:
        if _text(code) not in _DTYPES:
            raise ValueError("it has an array of something else than whole numbers")
        self.dtype: np.dtype[Any] = np.dtype(_text(code))

    def set_state(self, state: object) -> None:
        """Set the byte order; a type that has fields or a shape is refused."""
        if type(state) is not tuple or any(value is not None for value in state[2:5]):
            raise ValueError("it has an array of an unknown type")
        self.dtype = self.dtype.newbyteorder(_text(state[1]))  # type: ignore[arg-type]


class _Array:
    """Stands for numpy's array: empty, until its state is set."""

    def __init__(self, *ignored: object) -> None:
        self.values: np.ndarray[Any, np.dtype[Any]] | None = None

    def set_state(self, state: Any) -> "_Array":
        """Make the array of (version, shape, type, whether columns come first, bytes)."""
        _, shape, dtype, columns_first, content = state
        if type(content) is not bytes or type(dtype) is not _Dtype or type(shape) is not tuple:
            raise ValueError("it has an array without bytes, type or shape")
        if len(shape) > MOST_AXES or not all(type(side) is int and 0 <= side <= MOST_ARRAY for side in shape):
            raise ValueError("it has an array of an impossible shape")
        if math.prod(shape) * dtype.dtype.itemsize != len(content):
            raise ValueError(f"it has an array of {len(content)} bytes, which do not fill its shape")
        order: Literal["F", "C"] = "F" if columns_first is True else "C"
        self.values = np.frombuffer(content, dtype.dtype).reshape(shape, order=order)
        return self


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Stands for the function that pickles of Python 3 call for Python 2 to make bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise ValueError("it has bytes in an unknown encoding")
    return text.encode("latin1")


def _text(value: object) -> str:
    """Text, which Python 2 writes as bytes. Other values are refused: hashing nested tuples may take ages."""
    if not isinstance(value, str | bytes):
        raise ValueError(f"it has a {type(value).__name__} where a text should be")
    return value.decode("latin1") if isinstance(value, bytes) else value


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): None,  # only an argument, which _Array ignores
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}
for _package in ("numpy.core", "numpy._core"):  # numpy 1 and 2
    _NAMES[f"{_package}.multiarray", "_reconstruct"] = _Array
    _NAMES[f"{_package}.numeric", "_frombuffer"] = lambda content, dtype, shape, order: _Array().set_state(
        (1, shape, dtype, order == "F", content)
    )


class _Unpickler(pickle._Unpickler):
    """Python's unpickler, restricted to the instructions and names that plain values and arrays need."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.path, self.left = path, MOST_INSTRUCTIONS
        # `load` looks every instruction up in here.
        self.dispatch = self  # type: ignore[assignment,misc]

    def __getitem__(self, code: int) -> Callable[..., None]:
        """Look up the function of an instruction, and count the instructions."""
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"it has more than {MOST_INSTRUCTIONS} instructions")
        if code not in _DISPATCH and code in pickle._Unpickler.dispatch:
            raise _unsafe(self.path, f"the instruction {chr(code)!r}")
        return _DISPATCH[code]

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name."""
        if (module, name) not in _NAMES:
            raise _unsafe(self.path, visible(f"{module}.{name}"[:80]))
        return _NAMES[module, name]

    def build(self) -> None:
        """BUILD: arrays and their types have a state, unlike the classes and functions on the stack."""
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_Array, _Dtype):
            raise ValueError("it changes something else than an array")
        self.stack[-1].set_state(state)

    def update(self, values: list[Any]) -> None:
        """SETITEM and SETITEMS: put keys and values into a dictionary."""
        if type(self.stack[-1]) is not dict:
            raise ValueError("it has a key outside of a dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            self.stack[-1][_text(key)] = value


_ALLOWED = [getattr(pickle, name)[0] for name in _INSTRUCTIONS]
_DISPATCH: dict[int, Callable[[Any], None]] = {
    **{code: pickle._Unpickler.dispatch[code] for code in _ALLOWED},
    pickle.BUILD[0]: _Unpickler.build,
    pickle.SETITEM[0]: lambda reader: reader.update([reader.stack.pop(-2), reader.stack.pop()]),
    pickle.SETITEMS[0]: lambda reader: reader.update(reader.pop_mark()),
    # Its own allocates before it reads.
    pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
}


def _unsafe(path: Path, what: str) -> UserError:
    return UserError(f"{path} asks for {what}, which could execute code: refused", code="unsafe-file")


def read_pickle(path: Path) -> dict[str, object]:
    """Read a pickled dictionary of plain values and arrays without executing anything in it."""
    try:
        check_file(path, MOST_ARRAY)
        content = path.read_bytes()
    except FileNotFoundError as error:
        message = f"{path} is missing: expected a pickled batch of CIFAR (python version)"
        raise UserError(message, code="missing-file") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read: {reason}", code="unreadable-file") from error
    try:
        batch = _Unpickler(path, content).load()
        if type(batch) is not dict:
            raise ValueError(f"it has a {type(batch).__name__} instead of a dictionary with data and labels")
        for key, value in batch.items():
            if type(value) is _Array:
                if value.values is None:
                    raise ValueError("it has an array without values")
                batch[key] = value.values
        return batch
    except UserError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UserError(f"{path} is damaged: {error}; download it again", code="damaged-file") from error
