"""The header of a `.npy` file, read without NumPy's loader, so that nothing is ever unpickled.

Source of the format: NumPy Enhancement Proposal 1 and `numpy.lib.format`, versions 1.0, 2.0 and 3.0.
"""

import ast
import re
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from shards.features import DTYPES, MAX_AXES
from shards.text import printable

MAGIC = b"\x93NUMPY"
#: Read this many bytes of a file first; headers are longer only if padded on purpose.
FIRST_READ = 4096
_MAX_HEADER = 65536
# NumPy writes the shape last. What follows its first number here can be nothing but the rest of it and of the header.
_STEPS_APART = re.compile(r"(\{.*'shape': \()([1-9][0-9]{0,17})((?:, ?[0-9]+)*,?\), ?\} *\n)", re.DOTALL)
# All that NumPy writes, and no operator, name, comment or escape besides. Python's parser would warn of some of these
# on the terminal, and go as deep as an expression does, which may be deeper than the stack of a thread; brackets alone
# it follows 200 deep. That what closes is never followed by what opens keeps out chains such as "()()()".
_LITERALS = re.compile(
    r"""(?:[\s,:({\[]|[)}\]](?!\s*[({\[])|-?[0-9][0-9A-FXa-fx.]*(?!\w)|(?:True|False|None)(?!\w)"""
    r"""|'[^'\\\n]*(?:ESCAPE[^'\\\n]*)*'|"[^"\\\n]*(?:ESCAPE[^"\\\n]*)*")*""".replace(
        "ESCAPE", r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"""
    )
)
_CACHED_TEXT = 4096
_MAX_FIELDS = 1000
_MAX_ITEM = 2**31
_FORMAT = re.compile(r"[<>=|]?[?b-zA-Z][a-z]*[0-9]{0,8}(\[[0-9A-Za-z]+\])?")  # NumPy 1 wraps sizes of 32 bits around
_LISTED = 20  # names that one error message shows

_REFUSED_KINDS = {
    "O": "Python objects, which only unpickling could read and which this tool never unpickles",
    "S": "byte strings",
    "U": "text",
    "V": "void data",
    "M": "dates",
    "m": "time differences",
}


class NpyField(NamedTuple):
    """One value, or small array of `shape`, of each element of an array, at byte `offset` of the element.

    `name` is "" where the elements have no fields; `dtype` is a name of `shards.features.DTYPES`.
    """

    name: str
    dtype: str
    big_endian: bool
    shape: tuple[int, ...]
    offset: int


class NpyHeader(NamedTuple):
    """What a header says: the array's elements have `itemsize` bytes each, the data begin at byte `offset`."""

    fields: tuple[NpyField, ...]
    itemsize: int
    fortran_order: bool
    shape: tuple[int, ...]
    offset: int

    @property
    def file_bytes(self) -> int:
        """Bytes that the file must have."""
        return self.offset + prod(self.shape) * self.itemsize


class NpyError(ValueError):
    """The file is no episode file, or one of a kind that cannot be cut into windows; says why."""


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


def parse_header(start: bytes, picked: Collection[str] | None = None) -> NpyHeader:
    """Parse the header in the first bytes of a file; NpyError, which says why, if it cannot be part of an episode.

    Of fields, only the `picked` ones are kept, if any are; the others may then be of kinds that are refused otherwise.
    """
    end = header_bytes(start)
    if len(start) < end:
        raise NpyError("ends within its header")
    begin = 10 if start[6] == 1 else 12
    try:
        text = start[begin:end].decode("utf-8" if start[6] == 3 else "latin1")
    except UnicodeDecodeError:
        raise NpyError("has a header that cannot be read") from None
    names = None if picked is None else tuple(picked)
    match = _STEPS_APART.fullmatch(text) if len(text) <= _CACHED_TEXT else None
    if match:
        before, steps, after = match.groups()
        with suppress(NpyError):  # what is wrong is told of the whole text
            header = _parse_text(f"{before}1{after}", names)
            return _check_size(header._replace(shape=(int(steps), *header.shape[1:]), offset=end))
    return _check_size(_parse_text.__wrapped__(text, names)._replace(offset=end))


@lru_cache(maxsize=256)  # a million headers have few texts, but for the steps
def _parse_text(text: str, picked: tuple[str, ...] | None) -> NpyHeader:
    """The header in a text, but for where the data begin."""
    if not _LITERALS.fullmatch(text):
        raise NpyError("has a header that cannot be read")
    try:
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
    descr = header["descr"]
    fields, itemsize = _parse_fields(descr, picked) if isinstance(descr, list) else _parse_plain(descr)
    if 0 in shape[1:]:
        raise NpyError(f"has steps without any value: shape {shape}")
    if any(len(shape + field.shape) > MAX_AXES for field in fields) or prod(shape[1:]) * itemsize >= 2**63:
        raise _impossible(shape, itemsize)
    return NpyHeader(fields, itemsize, fortran_order and len(shape) > 1, shape, 0)


def _check_size(header: NpyHeader) -> NpyHeader:
    """The header, if an array of its shape is possible."""
    if prod(header.shape) * header.itemsize >= 2**63:
        raise _impossible(header.shape, header.itemsize)
    return header


def _impossible(shape: tuple[int, ...], itemsize: int) -> NpyError:
    return NpyError(f"has a header with the impossible shape {_shown(shape)} of elements of {itemsize} bytes")


def check_picked(picked: Collection[str] | None, there: Collection[str]) -> None:
    """NpyError if something is picked that is not there."""
    lacking = sorted(set(picked or ()) - set(there))
    if lacking:
        names = [printable(name[:100]) for name in sorted(there)]
        names[_LISTED:] = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
        raise NpyError(f"has no array {lacking[0]!r}; it holds {', '.join(names) or 'none'}")


def _possible(shape: tuple[object, ...]) -> bool:
    sizes = [size for size in shape if type(size) is int and 0 <= size < 2**63]
    return len(sizes) == len(shape) <= MAX_AXES and prod(sizes) < 2**63


def _shown(value: object) -> str:
    try:
        return f"{value!r:.100}"
    except ValueError:  # an integer of more digits than Python prints
        return "(a number of thousands of digits)"


def _parse_plain(descr: object) -> tuple[tuple[NpyField, ...], int]:
    dtype = _parse_format(descr)
    return (_field("", dtype, (), 0),), dtype.itemsize


def _parse_fields(descr: list[object], picked: Collection[str] | None) -> tuple[tuple[NpyField, ...], int]:
    """(the picked fields, bytes of an element) of a header's description of elements with fields."""
    fields: list[NpyField] = []
    names: set[str] = set()
    end = 0
    if len(descr) > _MAX_FIELDS:
        raise NpyError(f"has {len(descr)} fields; {_MAX_FIELDS} at most are read")
    for entry in descr:
        name, format_, shape = _parse_entry(entry)
        if name in names:
            raise NpyError(f"has two fields of the name {name[:100]!r}")
        advice = ""
        try:
            dtype = _parse_format(format_)
            advice = "" if picked else " (--features can leave it out)"
            if name and (not picked or name in picked):
                fields.append(_field(name, dtype, shape, end))
        except NpyError as error:
            raise NpyError(f"has a field {name[:100]!r} that {error}{advice}") from None
        if not name and dtype.kind != "V":  # NumPy's padding is void data without a name
            raise NpyError("has a field without a name")
        if name:
            names.add(name)
        end += prod(shape) * dtype.itemsize
        if end >= _MAX_ITEM:
            raise NpyError(f"has elements of {end} bytes or more; {_MAX_ITEM} are too many")
    if not names:
        raise NpyError("holds elements without any field")
    check_picked(picked, names)
    return tuple(fields), end


def _parse_entry(entry: object) -> tuple[str, object, tuple[int, ...]]:
    """(name, dtype description, shape) of one field; a title, which may stand beside the name, is dropped."""
    if not isinstance(entry, tuple) or len(entry) not in {2, 3}:
        raise NpyError(f"has a header with the impossible field {_shown(entry)}")
    name, format_, shape = entry if len(entry) == 3 else (*entry, ())
    if isinstance(name, tuple) and len(name) == 2:
        name = name[1] or None  # only padding is without a name, and it has no title
    if not isinstance(name, str):
        raise NpyError(f"has a header with the impossible field {_shown(entry)}")
    if not isinstance(shape, tuple) or not _possible(shape):
        raise NpyError(f"has a field {name[:100]!r} of the impossible shape {_shown(shape)}")
    return name, format_, shape


def _parse_format(descr: object) -> np.dtype:
    """The dtype of a description without fields; any that has a fixed number of bytes."""
    if descr == "<V2":  # what NumPy writes for ml_dtypes.bfloat16; true void data is "|V2"
        return DTYPES["bfloat16"]
    if isinstance(descr, list):
        raise NpyError("holds fields within a field, which cannot be windows")
    if not isinstance(descr, str) or not _FORMAT.fullmatch(descr):
        raise NpyError(f"has the unknown dtype {_shown(descr)}")
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError, OverflowError):
        raise NpyError(f"has the unknown dtype {_shown(descr)}") from None
    if dtype.hasobject:
        raise NpyError(f"holds {_REFUSED_KINDS['O']}")
    return dtype


def _field(name: str, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> NpyField:
    """A field that windows can hold."""
    if dtype.name not in DTYPES:
        if dtype.kind in _REFUSED_KINDS:
            raise NpyError(f"holds {_REFUSED_KINDS[dtype.kind]} (dtype {dtype.str}), which cannot be windows")
        raise NpyError(f"has dtype {dtype.name}, which is none of {', '.join(DTYPES)}")
    if 0 in shape:
        raise NpyError(f"holds no value: shape {shape}")
    return NpyField(name, dtype.name, dtype.byteorder == ">", shape, offset)
