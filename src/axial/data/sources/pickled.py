"""The two data sets that come as pickles, read by a machine of our own that only makes data.

Python's unpickler calls whatever a pickle names, and numpy's own parts can be made to read
memory that is not theirs. Here a pickle is walked through one instruction at a time; what it
asks for by name is known by that name and never fetched, and nothing in it takes more memory
than its own bytes.
"""

import math
import pickletools
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from axial.data.packed import Array
from axial.data.sources.archives import shown, told
from axial.errors import DataError

_RECONSTRUCT = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_ARRAY, _DTYPE, _ENCODE = "numpy.ndarray", "numpy.dtype", "_codecs.encode"
_ALLOWED = {*_RECONSTRUCT, _ARRAY, _DTYPE, _ENCODE}
_PIECE = 1 << 20
_KINDS = {"u1", "i1", "u2", "i2", "u4", "i4", "i8", "f4", "f8"}

_IGNORED = {"PROTO", "FRAME", "STOP"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "BINFLOAT"}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_PLAIN = _NUMBERS | _TEXTS | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_OLD_STRINGS = {"BINSTRING", "SHORT_BINSTRING"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _RefusedError(Exception):
    pass


class _Global:
    """Something a pickle asks for by name."""

    def __init__(self, name: str) -> None:
        if name not in _ALLOWED:
            raise _RefusedError(shown(name))
        self.name = name


class _Kind:
    """Stands for a numpy.dtype: a plain number, lowest byte first."""

    def __init__(self, code: Any) -> None:
        code = _text(code)
        if code.lstrip("<|=") not in _KINDS:
            raise _RefusedError(f"numpy.dtype({shown(code[:20])})")
        self.dtype = np.dtype(code.lstrip("<|="))

    def build(self, state: Any) -> None:
        _, order, *fields = state
        if _text(order) not in ("<", "|", "=") or any(field is not None for field in fields[:3]):
            raise _RefusedError("a numpy.dtype of no plain numbers")


class _Held:
    """Stands for a numpy.ndarray, whose contents come after it."""

    array: Array | None = None

    def build(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Kind) or not isinstance(raw, bytes | bytearray):
            raise _RefusedError("a numpy.ndarray of no plain numbers")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("an array whose shape is no shape")
        if math.prod(shape) * kind.dtype.itemsize != len(raw):
            raise ValueError(f"an array of another size than its {len(raw)} bytes")
        flat = np.frombuffer(raw, kind.dtype)
        self.array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


class _InPieces:
    """A file that is asked for a piece at a time: lengths that lie take no memory."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.readline, self.tell = file, file.readline, file.tell

    def read(self, size: int) -> bytes | bytearray:
        found = bytearray()
        while part := self.file.read(min(size - len(found), _PIECE)):
            found += part
        return found if len(found) > _PIECE else bytes(found)  # no copy of what is large


class _Machine:
    """Carries out the instructions that data needs; refuses all others."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0

    def load(self, file: BinaryIO) -> Any:
        for code, argument, position in pickletools.genops(cast(BinaryIO, _InPieces(file))):
            self._step(code.name, argument, position or 0)
        return self.stack.pop()

    def _step(self, name: str, argument: Any, position: int) -> None:
        stack = self.stack
        if name in _PLAIN:
            stack.append(argument)
        elif name in _OLD_STRINGS:
            stack.append(argument.encode("latin1"))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            stack.append(tuple([stack.pop() for _ in range(_TUPLES[name])][::-1]))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(self._call(stack.pop(), arguments, position))
        elif name not in _IGNORED:
            self._gather(name, argument)

    def _gather(self, name: str, argument: Any) -> None:
        """The instructions that put together what lies on the stack."""
        stack = self.stack
        if name == "MARK":
            self.marks.append(len(stack))
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in ("TUPLE", "LIST"):
            stack.append((tuple if name == "TUPLE" else list)(self._to_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._to_mark() if name == "APPENDS" else [stack.pop()]
            _checked(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._to_mark() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
            _fill(_checked(stack[-1], dict), items)
        elif name == "GLOBAL":
            stack.append(_Global(argument.replace(" ", ".", 1)))
        elif name == "STACK_GLOBAL":
            own = stack.pop()
            stack.append(_Global(f"{_text(stack.pop())}.{_text(own)}"))
        elif name == "BUILD":
            state = _checked(stack.pop(), tuple)
            _checked(stack[-1], (_Kind, _Held)).build(state)
        else:
            raise _RefusedError(f"the instruction {name}")

    def _to_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _call(self, what: Any, arguments: Any, position: int) -> Any:
        name, arguments = _checked(what, _Global).name, _checked(arguments, tuple)
        if name in _RECONSTRUCT:
            return _Held()
        if name == _DTYPE:
            return _Kind(arguments[0])
        text, encoding = arguments
        if name != _ENCODE or encoding not in ("latin1", "latin-1"):
            raise _RefusedError(f"{name} in a way of its own")
        self.encoded += len(_checked(text, str))
        if self.encoded > position:  # the same text again and again: a small file grows without end
            raise _RefusedError("more bytes than it holds")
        return text.encode("latin1")


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} in a place where it cannot be")
    return value


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(_checked(value, str))


def _fill(table: dict[Any, Any], items: list[Any]) -> None:
    """Keys are names and nothing else: a tuple deep enough overflows the stack when hashed."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        table[_text(key)] = value


def read_batch(file: BinaryIO, where: Path | str) -> tuple[Array, Array]:
    """The rows and labels of a pickled batch: a dictionary with `data` and `labels`."""
    try:
        found = _Machine().load(file)
        if file.read(1):  # where an archive compares its checksum
            raise ValueError("there is more after its end")
    except _RefusedError as error:
        raise DataError(
            f"{where}: is a pickle that asks for {error}, which no data needs; not read, do not "
            f"trust it"
        ) from error
    except Exception as error:  # a damaged pickle can raise anything at all
        raise DataError(
            f"{where}: damaged or cut short near byte {file.tell()} ({told(error)}); fetch it again"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{where}: is a pickle without `data` and `labels`; not a batch")
    data, labels = _plain(found.get("data")), _plain(found.get("labels"))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
        raise DataError(f"{where}: its `data` is no array of bytes with one picture a row")
    if isinstance(labels, list) and all(type(n) is int and abs(n) < 1 << 31 for n in labels):
        labels = np.array(labels, np.int64)
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
        raise DataError(f"{where}: its `labels` are no list of integers; not a batch")
    if labels.shape != (len(data),):
        raise DataError(f"{where}: has {len(data)} pictures but other labels; fetch it again")
    return data, labels


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _Held) else value
