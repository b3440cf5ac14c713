"""A reader of pickled dictionaries of plain values and arrays, which executes nothing.

It is no unpickler that refuses some names, but a small machine of its own that knows a few instructions: values, lists,
tuples, dictionaries, and the calls that arrays are pickled as. An array is made here, from its bytes, whose number must
be that of its shape; its type is one of eight kinds of whole numbers. Nothing else can come out.
"""

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testdg.bounds import MOST_ARRAY, check_file
from testdg.errors import UserError

MOST_STEPS = 1_000_000  # the largest part of CIFAR takes 300 thousand
MOST_SIDES = 8

_KINDS = {f"{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8)}
_PLAIN = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NAMES = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("numpy.core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy._core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy.core.numeric", "_frombuffer"): "frombuffer",
    ("numpy._core.numeric", "_frombuffer"): "frombuffer",
    ("_codecs", "encode"): "encode",
}


class _Refused(Exception):
    """A pickle asked for something that is not an array."""


@dataclass(frozen=True)
class _Name:
    """One of the names that arrays need; it is never called."""

    name: str


@dataclass
class _Kind:
    """The type of an array's numbers."""

    code: str
    order: str = "="


@dataclass
class _Array:
    """An array in the making."""

    made: np.ndarray[Any, np.dtype[Any]] | None = None


class _Machine:
    """Follows the instructions of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """Follow all instructions and give what is left."""
        for number, (step, argument, _) in enumerate(pickletools.genops(content)):
            if number >= MOST_STEPS:
                raise ValueError(f"it has more than {MOST_STEPS} instructions")
            self._step(step.name, argument)
        if len(self.stack) != 1 or self.marks:
            raise ValueError(f"it leaves {len(self.stack)} values")
        return self.stack[0]

    def _step(self, name: str, argument: Any) -> None:
        push = self.stack.append
        match name:
            case _ if name in _PLAIN:
                push(argument)
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "EMPTY_LIST":
                push([])
            case "EMPTY_DICT":
                push({})
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                push(tuple(self._since_mark()))
            case "APPEND" | "APPENDS":
                values = self._pop(1) if name == "APPEND" else self._since_mark()
                self._top(list).extend(values)
            case "SETITEM" | "SETITEMS":
                self._set(self._pop(2) if name == "SETITEM" else self._since_mark())
            case "SHORT_BINSTRING" | "BINSTRING":  # a text of Python 2, which is bytes
                push(argument.encode("latin1"))
            case "BYTEARRAY8":
                push(bytes(argument))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self._top()
            case "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    raise ValueError("it names a value that was not kept")
                push(self.memo[argument])
            case "GLOBAL":
                push(_find(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                push(_find(*self._pop(2)))
            case "REDUCE":
                push(_call(*self._pop(2)))
            case "BUILD":
                (state,) = self._pop(1)
                _fill(self._top(), state)
            case _ if name in _CONSTANTS:
                push(_CONSTANTS[name])
            case _ if name in _TUPLES:
                push(tuple(self._pop(_TUPLES[name])))
            case _:
                raise _Refused(f"the instruction {name}")

    def _pop(self, count: int) -> list[Any]:
        """Take the last values; those before a mark cannot be reached."""
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            raise ValueError("it takes a value where there is none")
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def _since_mark(self) -> list[Any]:
        if not self.marks:
            raise ValueError("it has no mark")
        return self._pop(len(self.stack) - self.marks.pop())

    def _top(self, wanted: type | None = None) -> Any:
        """The last value, which stays, and must be of a kind."""
        (value,) = self._pop(1)
        if wanted is not None and type(value) is not wanted:
            raise ValueError(f"it has a {type(value).__name__} in place of a {wanted.__name__}")
        self.stack.append(value)
        return value

    def _set(self, values: list[Any]) -> None:
        """Put keys and values into a dictionary; other keys than texts are refused, which may take ages to hash."""
        target = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise ValueError(f"it has a {type(key).__name__} as a key")
            target[key] = value


def _find(module: Any, name: Any = "") -> _Name:
    if isinstance(module, str) and isinstance(name, str) and (module, name) in _NAMES:
        return _Name(_NAMES[module, name])
    if not isinstance(module, str):
        raise _Refused("something without a name")
    asked = f"{module}.{name}"  # shown as it is only where that is fit for a terminal
    raise _Refused(asked[:80] if asked.isprintable() else repr(asked)[:80])


def _call(called: Any, arguments: Any) -> Any:
    """What numpy would make of a call; no function of the file is called."""
    if not isinstance(called, _Name) or not isinstance(arguments, tuple):
        raise ValueError("it calls what cannot be called")
    makers: dict[str, Callable[..., Any]] = {
        "reconstruct": _reconstruct, "dtype": _kind, "frombuffer": _from_buffer, "encode": _latin1,
    }  # fmt: skip
    if called.name not in makers:
        raise ValueError("it makes an array without its numbers")
    return makers[called.name](*arguments)


def _fill(target: Any, state: Any) -> None:
    if isinstance(target, _Kind):
        target.order = _order(state)
    elif isinstance(target, _Array) and isinstance(state, tuple) and len(state) == 5:
        _, shape, kind, fortran, content = state
        target.made = _make(content, kind, shape, "F" if fortran is True else "C")
    else:
        raise ValueError("it changes what cannot be changed")


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    """An array that is filled in later."""
    if kind != _Name("ndarray"):
        raise ValueError("it makes something else than an array")
    return _Array()


def _kind(code: Any, align: Any = False, copy: Any = True) -> _Kind:
    """The type of an array: whole numbers of one to eight bytes."""
    code = code.decode("latin1") if isinstance(code, bytes) else code
    if not isinstance(code, str) or code not in _KINDS:
        raise ValueError("it has an array that holds no whole numbers")
    return _Kind(code)


def _order(state: Any) -> str:
    """The order of bytes, all that is read from the state of a type; fields and flags must be absent."""
    orders = {"<": "<", ">": ">", "|": "=", "=": "=", b"<": "<", b">": ">", b"|": "=", b"=": "="}
    named = isinstance(state, tuple) and len(state) >= 5 and isinstance(state[1], str | bytes) and state[1] in orders
    if not named or any(value is not None for value in state[2:5]):
        raise ValueError("it has an array of an unknown type")
    return orders[state[1]]


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> _Array:
    return _Array(_make(content, kind, shape, "F" if order == "F" else "C"))


def _make(content: Any, numbers: Any, shape: Any, order: str) -> np.ndarray[Any, np.dtype[Any]]:
    """An array of bytes that are all there, and no more."""
    if not isinstance(content, bytes) or not isinstance(numbers, _Kind):
        raise ValueError("it has an array without its bytes or its type")
    sides = shape if isinstance(shape, tuple) and len(shape) <= MOST_SIDES else [None]
    if not all(type(side) is int and 0 <= side <= MOST_ARRAY for side in sides):
        raise ValueError("it has an array of no shape")
    dtype = np.dtype(numbers.order + numbers.code)
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"it has an array of {len(content)} bytes, which do not fill its shape")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if order == "F" else "C")


def _latin1(text: Any, encoding: Any = "latin1") -> bytes:
    """What older pickles call to make bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("it has bytes in an unknown encoding")
    return text.encode("latin1")


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of plain values and arrays without executing anything in it."""
    try:
        check_file(path, MOST_ARRAY)
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: expected a pickled batch of CIFAR (python version)") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return parse_pickle(path, content)


def parse_pickle(path: Path, content: bytes) -> dict[str, Any]:
    """The same for what was read from a path."""
    try:
        batch = _Machine().run(content)
    except _Refused as error:
        raise UserError(f"{path} asks for {error}, which is not an array and could execute code: refused") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UserError(f"{path} is damaged: {error}; download it again") from error
    if not isinstance(batch, dict):
        raise UserError(f"{path} holds a {type(batch).__name__}: expected a dictionary with data and labels")
    found = {}
    for key, value in batch.items():
        if isinstance(value, _Array) and value.made is None:
            raise UserError(f"{path} is damaged: it has an array without its numbers; download it again")
        text = key.decode("latin1") if isinstance(key, bytes) else key
        found[text] = value.made if isinstance(value, _Array) else value
    return found
