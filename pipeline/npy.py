"""The header of a `.npy` file, read without NumPy's loader, so that nothing is ever unpickled.

Source of the format: NumPy Enhancement Proposal 1 and `numpy.lib.format`, versions 1.0, 2.0 and 3.0.
"""

import ast
import re
from math import prod
from typing import NamedTuple

import numpy as np

from shards.features import DTYPES

MAGIC = b"\x93NUMPY"
#: Read this many bytes of a file first; headers are longer only if padded on purpose.
FIRST_READ = 4096
_MAX_HEADER = 65536

_REFUSED_KINDS = {
    "O": "Python objects, which only unpickling could read and which this tool never unpickles",
    "S": "byte strings",
    "U": "text",
    "V": "structured or void data",
    "M": "dates",
    "m": "time differences",
}


class NpyHeader(NamedTuple):
    """What a header says: `dtype` is a name of `shards.features.DTYPES`, the data begin at byte `offset`."""

    dtype: str
    big_endian: bool
    fortran_order: bool
    shape: tuple[int, ...]
    offset: int

    @property
    def file_bytes(self) -> int:
        """Bytes that the file must have."""
        return self.offset + prod(self.shape) * DTYPES[self.dtype].itemsize


class NpyError(ValueError):
    """The file is no `.npy` file, or one of a kind that cannot be cut into windows; says why."""


def header_bytes(start: bytes) -> int:
    """How many bytes of a file its header takes, from its first 12 bytes or more; NpyError if it is no `.npy` file."""
    if not start:
        raise NpyError("is empty")
    if not start.startswith(MAGIC):
        kind = " (it is a zip archive, perhaps an .npz file)" if start.startswith(b"PK") else ""
        raise NpyError(f"is no .npy file{kind}: it does not begin with the .npy magic bytes")
    version = tuple(start[6:8])
    if version not in {(1, 0), (2, 0), (3, 0)} or len(start) < 12:
        raise NpyError("ends within its header" if len(start) < 12 else f"has .npy version {version}, not 1.0 to 3.0")
    width = 2 if version == (1, 0) else 4
    size = int.from_bytes(start[8 : 8 + width], "little")
    if size > _MAX_HEADER:
        raise NpyError(f"claims a header of {size} bytes; {_MAX_HEADER} at most are read")
    return 8 + width + size


def parse_header(start: bytes) -> NpyHeader:
    """Parse the header in the first bytes of a file; NpyError, which says why, if it cannot be an episode."""
    end = header_bytes(start)
    if len(start) < end:
        raise NpyError("ends within its header")
    begin = 10 if start[6] == 1 else 12
    try:
        text = start[begin:end].decode("utf-8" if start[6] == 3 else "latin1")
        header = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise NpyError("has a header that cannot be read") from None
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise NpyError("has a header without exactly descr, fortran_order and shape")
    shape, fortran_order = header["shape"], header["fortran_order"]
    if not isinstance(shape, tuple) or not _possible(shape):
        raise NpyError(f"has a header with the impossible shape {_shown(shape)}")
    if not isinstance(fortran_order, bool):
        raise NpyError("has a header with a fortran_order that is neither True nor False")
    name, big_endian = _parse_descr(header["descr"])
    if not shape:
        raise NpyError("holds a single value (shape ()), not an array along time")
    if 0 in shape[1:]:
        raise NpyError(f"has steps without any value: shape {shape}")
    return NpyHeader(name, big_endian, fortran_order and len(shape) > 1, shape, end)


def _possible(shape: tuple[object, ...]) -> bool:
    sizes = [size for size in shape if type(size) is int and 0 <= size < 2**63]
    return len(sizes) == len(shape) <= 64 and prod(sizes) < 2**63


def _shown(value: object) -> str:
    try:
        return f"{value!r:.100}"
    except ValueError:  # an integer of more digits than Python prints
        return "(a number of thousands of digits)"


def _parse_descr(descr: object) -> tuple[str, bool]:
    """(dtype name, whether big-endian) of a header's dtype description."""
    if descr == "<V2":  # what NumPy writes for ml_dtypes.bfloat16; true void data is "|V2"
        return "bfloat16", False
    if isinstance(descr, list):
        raise NpyError(f"holds {_REFUSED_KINDS['V']}, which cannot be windows")
    if not isinstance(descr, str) or not re.fullmatch(r"[<>=|]?[?b-zA-Z][a-z]*[0-9]*(\[[0-9A-Za-z]+\])?", descr):
        raise NpyError(f"has the unknown dtype {_shown(descr)}")
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError, OverflowError):
        raise NpyError(f"has the unknown dtype {_shown(descr)}") from None
    if dtype.hasobject:
        raise NpyError(f"holds {_REFUSED_KINDS['O']}")
    if dtype.kind in _REFUSED_KINDS:
        raise NpyError(f"holds {_REFUSED_KINDS[dtype.kind]} (dtype {dtype.str}), which cannot be windows")
    if dtype.name not in DTYPES:
        raise NpyError(f"has dtype {dtype.name}, which is none of {', '.join(DTYPES)}")
    return dtype.name, dtype.byteorder == ">"
