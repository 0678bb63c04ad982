"""Reads the pickle files of CIFAR without trusting them: a file can hold arrays, never code.

No class or function of the file is ever looked up. The few names that NumPy's arrays need map to the stand-ins below,
which check what they are given, and NumPy itself sees only a checked (bytes, dtype, shape).
"""

import io
import pickle
import pickletools
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedatoms.core.border import read_bytes
from fedatoms.core.lookup import one_line

AGAIN = "Get the file again from the data set's official page."

# What Python 2 and 3 write for dictionaries, lists, tuples, text, bytes, whole numbers and arrays. EXT1, EXT2 and EXT4
# are missing on purpose: objects of the extension registry never pass through find_class.
_OPCODES = frozenset(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 STRING BINSTRING "
    "SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS PUT "
    "BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD".split()
)
_LONGEST = 500_000  # opcodes; CIFAR-100 has 200,000: 50,000 images with two labels and a name that is numbered


def read_pickle(path: Path, most: int | None = None) -> dict[str, object]:
    """Reads a pickled dictionary of arrays, lists and text; keys become text, whichever Python wrote them.

    A file of more than ``most`` bytes is refused, and one whose arrays hold more bytes than the file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "data_batch_1"
    >>> _ = file.write_bytes(pickle.dumps({b"data": np.arange(3, dtype=np.uint8)}, protocol=2))
    >>> read_pickle(file)
    {'data': array([0, 1, 2], dtype=uint8)}
    """
    content = read_bytes(path, most)
    try:
        _check_opcodes(content)
        return _plain(_Reader(io.BytesIO(content), encoding="latin1").load(), len(content))
    except Exception as error:  # hostile bytes can raise anything; the user sees one kind of error, on one line
        reason = one_line(error)[:200]
        raise ValueError(f"{path} cannot be read as a pickled dictionary of arrays ({reason}). {AGAIN}") from None


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"refuses to load {f'{module}.{name}'!r}: only NumPy arrays are allowed")
        return _NAMES[module, name]

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("refuses a persistent id: only NumPy arrays are allowed")


# Each stand-in is a class with __setstate__, so that the BUILD opcode cannot set attributes on the stand-in itself.
# None copies what it is given: a text that is named a thousand times would take a thousand times its memory.
class _Bytes:
    """Stands in for ``_codecs.encode``, by which Python 3 writes bytes in protocol 2."""

    __slots__ = ("text",)

    def __init__(self, text: str, encoding: str) -> None:
        if not isinstance(text, str) or encoding != "latin1":
            raise ValueError("bytes must be written as latin1 text")
        self.text = text

    def __setstate__(self, state: object) -> None:
        raise ValueError("bytes have no state")


class _Dtype:
    """Stands in for ``numpy.dtype``: a number of fixed size, never an object or a structure."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, align: int = 0, copy: int = 1) -> None:
        if not isinstance(code, str) or re.fullmatch("b1|[iu][1248]|f[248]", code) is None:
            raise ValueError(f"dtype {str(code)[:20]!r} is not a plain number type")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, order, *structure = state
        if order not in ("|", "<", ">", "=") or any(part is not None for part in structure[:3]):
            raise ValueError("a dtype must be a plain number type")
        self.order = str(order)

    def numpy(self) -> "np.dtype[np.generic]":
        return np.dtype(self.order + self.code)


class _Array:
    """Stands in for ``_reconstruct``, filled by the BUILD opcode, and for protocol 5's ``_frombuffer``, born full."""

    __slots__ = ("state",)

    def __init__(self, *arguments: object) -> None:
        self.state = arguments if len(arguments) == 4 else (b"", _Dtype("u1"), (0,), "C")

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        self.state = raw, dtype, shape, "F" if fortran else "C"


# The class numpy.ndarray is only ever handed to _reconstruct, which ignores it: text does, and cannot be called.
_NAMES: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _Array,
    ("numpy._core.numeric", "_frombuffer"): _Array,
}


def _array(raw: object, dtype: object, shape: object, order: object) -> npt.NDArray[np.generic]:
    text = raw.text if isinstance(raw, _Bytes) else raw
    data = text.encode("latin1") if isinstance(text, str) else text  # Python 2 wrote bytes as text
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise ValueError("an array must be bytes of a plain number type")
    if not isinstance(shape, tuple) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"array shape {str(shape)[:40]} is not a tuple of sizes")
    return np.frombuffer(data, dtype=dtype.numpy()).reshape(shape, order="F" if order == "F" else "C")


def _check_opcodes(content: bytes) -> None:
    tuples = 0
    for place, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"refuses the pickle opcode {opcode.name}: only NumPy arrays are allowed")
        if opcode.name.endswith("PUT") and isinstance(argument, int) and argument > len(content):
            raise pickle.UnpicklingError("a memo index is larger than the file")  # would allocate gigabytes
        tuples += "TUPLE" in opcode.name
        if tuples > 1000:  # an array takes six; hashing a deep nest of them would overflow the stack
            raise pickle.UnpicklingError("has more tuples than any data file needs")
        if place > _LONGEST:  # an opcode of one byte can make an object of sixty
            raise pickle.UnpicklingError("has more objects than any data file needs")


def _plain(loaded: object, most: int) -> dict[str, object]:
    if not isinstance(loaded, dict) or not all(isinstance(key, str | bytes | _Bytes) for key in loaded):
        raise ValueError("is not a dictionary with text as keys")
    if sum(_size(value) for value in loaded.values()) > most:
        raise ValueError("has arrays of more bytes than the file")
    return {_text(key): _value(value) for key, value in loaded.items()}


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else key.text if isinstance(key, _Bytes) else str(key)


def _size(value: object) -> int:
    raw = value.state[0] if isinstance(value, _Array) else value
    text = raw.text if isinstance(raw, _Bytes) else raw
    return len(text) if isinstance(text, bytes | bytearray | str) else 0


def _value(value: object) -> object:
    if isinstance(value, _Bytes):
        return value.text.encode("latin1")
    return _array(*value.state) if isinstance(value, _Array) else value
