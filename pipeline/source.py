"""What an episode file holds, and reading steps of it: a `.npy` file, with or without fields, or an `.npz` archive.

Every array of an archive that has a first axis is a feature, and so is every field of a `.npy` file that has fields;
the lone array of any other `.npy` file is the feature "window". An array of an archive that has no axis is a value of
the whole episode. Nothing is ever unpickled, and nothing read but what was asked for.

Source of the format of archives: PKWARE's APPNOTE.TXT, sections 4.3 and 4.4, read by Python's `zipfile`.
"""

import struct
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import IO, Any, BinaryIO, NamedTuple, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib.stride_tricks import as_strided

from shards.features import DTYPES
from shards.naming import FEATURE_RULE, is_feature_name

from .npy import FIRST_READ, MAGIC, NpyError, NpyField, NpyHeader, check_picked, header_bytes, parse_header

#: The feature that a `.npy` file without fields holds.
WINDOW = "window"
ARCHIVE_SUFFIX = ".npz"
_MEMBER_SUFFIX = ".npy"
_MAX_MEMBERS = 1000
_MAX_DIRECTORY = 2**20  # bytes; what an archive claims about its own directory must not fill the memory
_PIECE_BYTES = 2**18  # `zipfile` holds what it decompresses in one call twice
_LOCAL_HEADER_BYTES = 30
#: Of a file whose header alone is read, or ranges of which each is large: what a read of a store takes at least.
HEADER_BYTES = 2**14
_ENCRYPTED = 0x1

# A Fortran-order range is read in one go where that reads little in vain, and column by column elsewhere.
_ONE_READ_BYTES = 2**26
_GAP_BYTES = 2**17


class Member(NamedTuple):
    """One array of an episode file, but for its length and place; `name` is that in an archive, "" in a `.npy` file.

    `shape` is that of a step, without the fields' own; None for a value of the whole episode.
    """

    name: str
    compressed: bool
    fields: tuple[NpyField, ...]
    itemsize: int
    fortran_order: bool
    shape: tuple[int, ...] | None


#: All that is looked at in a file, by name, but lengths and places; a million files have few different forms.
Form = tuple[Member, ...]


class SourceHeader(NamedTuple):
    """A file's form, its steps, and the bytes before each array's data: in the file, or decompressed if compressed."""

    form: Form
    steps: int
    offsets: tuple[int, ...]


class SourceArray(NamedTuple):
    """One feature that a form gives; `shape` is that of a step, None for a value of the whole episode."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


def arrays_of(form: Form) -> tuple[SourceArray, ...]:
    """The features of a form, by name."""
    return tuple(
        sorted(
            SourceArray(name, field.dtype, None if member.shape is None else member.shape + field.shape)
            for member in form
            for name, field in zip(_features(member), member.fields, strict=True)
        )
    )


def _features(member: Member) -> list[str]:
    return [field.name or member.name or WINDOW for field in member.fields]


def read_source_header(
    opened: BinaryIO, path: str, size: int | None, picked: Collection[str] | None = None
) -> SourceHeader:
    """What a file, open at its begin, holds; if any features are `picked`, these alone, and nothing else is looked at.

    `size` is the file's, if it is to be checked. Errors: NpyError, which says why the file cannot be an episode.
    """
    if path.endswith(ARCHIVE_SUFFIX):
        return _read_archive(opened, size, picked)
    header = parse_header(_read_start(opened), picked)
    if not header.shape:
        raise NpyError("holds a single value (shape ()), not an array along time")
    member = Member("", False, header.fields, header.itemsize, header.fortran_order, header.shape[1:])
    if header.fields[0].name:
        _check_names("field", _features(member))
    else:
        check_picked(picked, {WINDOW})
    if size is not None:
        _check_size(header, size, "array (several arrays saved into one file?)")
    return SourceHeader((member,), header.shape[0], (header.offset,))


def _read_start(opened: IO[bytes]) -> bytes:
    """The bytes of a file that its `.npy` header takes, or more."""
    start = opened.read(FIRST_READ)
    missing = header_bytes(start) - len(start)
    return start + opened.read(missing) if missing > 0 else start


def _check_names(kind: str, names: Iterable[str]) -> None:
    for name in names:
        if not is_feature_name(name):
            raise NpyError(
                f"has the {kind} {name[:100]!r}, which cannot name a feature: rename it to {FEATURE_RULE}; "
                "or leave it out with --features"
            )


def _check_size(header: NpyHeader, size: int, what: str) -> None:
    if header.file_bytes > size:
        raise NpyError(f"is cut short: {size} bytes, where its header promises {header.file_bytes}")
    if header.file_bytes < size:
        raise NpyError(f"has {size - header.file_bytes} bytes after its {what}")


def _read_archive(opened: BinaryIO, size: int | None, picked: Collection[str] | None) -> SourceHeader:
    members: list[Member] = []
    lengths: dict[str, int] = {}
    offsets: list[int] = []
    places: list[tuple[int, int]] = []
    _check_magic(opened.read(len(MAGIC)))
    with _damage_told(), _open_archive(opened) as archive:
        for name, info in sorted(_pick(archive.infolist(), picked).items()):
            try:
                header, begin = _read_member(opened, archive, info, size)
            except NpyError as error:
                advice = "" if picked or "--features" in str(error) else " (--features can leave it out)"
                raise NpyError(f"has an array {name!r} that {error}{advice}") from None
            compressed = info.compress_type != ZIP_STORED
            shape = header.shape[1:] if header.shape else None
            members.append(Member(name, compressed, header.fields, header.itemsize, header.fortran_order, shape))
            offsets.append(header.offset + (0 if compressed else begin))
            places.append((info.header_offset, begin + info.compress_size))
            if header.shape:
                lengths[name] = header.shape[0]
    places.sort()
    if any(end > begin for (_, end), (begin, _) in pairwise(places)):  # a few bytes would be as many arrays
        raise NpyError("has arrays that lie one on the other: the archive is damaged")
    if not lengths:
        values = ", ".join(member.name for member in members)
        raise NpyError(f"has no array along time{f', only single values: {values:.300}' if values else ''}")
    (one, steps), *others = lengths.items()
    for other, length in others:
        if length != steps:
            raise NpyError(
                f"has arrays of different lengths: {one} has {steps} steps, {other} {length}; "
                "name those that go together with --features"
            )
    return SourceHeader(tuple(members), steps, tuple(offsets))


def _check_magic(start: bytes) -> None:
    if not start:
        raise NpyError("is empty")
    if not start.startswith(b"PK"):
        kind = f" but a {_MEMBER_SUFFIX} file: rename it" if start == MAGIC else ": it does not begin as a zip archive"
        raise NpyError(f"is no {ARCHIVE_SUFFIX} file{kind}")


@contextmanager
def _damage_told() -> Iterator[None]:
    """Whatever a broken archive makes `zipfile` raise becomes a NpyError."""
    try:
        yield
    except NpyError:
        raise
    except (BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError, KeyError) as error:
        raise NpyError(f"is a damaged {ARCHIVE_SUFFIX} archive: {str(error) or 'it ends early':.200}") from None


class _Bounded:
    """A file whose reads are bounded, for `zipfile`, which reads as much as an archive claims its directory has."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self.tell, self.seekable = opened.tell, opened.seekable

    def seek(self, place: int, whence: int = 0) -> int:
        if whence == 0 and place < 0:  # an OSError of a file, which would look like a fault of the disk
            raise BadZipFile("it points to before its begin")
        return self._opened.seek(place, whence)

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_DIRECTORY:
            raise BadZipFile(f"it claims a directory of {size} bytes; {_MAX_DIRECTORY} at most are read")
        return self._opened.read(size)


def _open_archive(opened: BinaryIO) -> ZipFile:
    return ZipFile(cast(BinaryIO, _Bounded(opened)))


def _pick(infos: list[ZipInfo], picked: Collection[str] | None) -> dict[str, ZipInfo]:
    """The members to look at, by the names of their arrays."""
    if len(infos) > _MAX_MEMBERS:
        raise NpyError(f"has {len(infos)} members; {_MAX_MEMBERS} at most are read")
    found: dict[str, ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(_MEMBER_SUFFIX)
        if picked and name not in picked:
            continue
        if name == info.filename:
            raise NpyError(
                f"has the member {name[:100]!r}, which is no {_MEMBER_SUFFIX} array; name the arrays to take with "
                "--features"
            )
        if name in found:
            raise NpyError(f"has two arrays of the name {name[:100]!r}")
        found[name] = info
    if len(found) < len(picked or ()):
        check_picked(picked, {info.filename.removesuffix(_MEMBER_SUFFIX) for info in infos})
    _check_names("array", found)
    return found


def _read_member(opened: BinaryIO, archive: ZipFile, info: ZipInfo, size: int | None) -> tuple[NpyHeader, int]:
    """(header, where the member's bytes begin in the archive)."""
    if info.flag_bits & _ENCRYPTED:
        raise NpyError("is encrypted; save it without a password")
    if info.compress_type not in {ZIP_STORED, ZIP_DEFLATED}:
        raise NpyError(f"is compressed by method {info.compress_type}, neither stored nor deflated as NumPy saves it")
    with archive.open(info) as stream:  # makes sure of the local header's signature and name
        header = parse_header(_read_start(stream))
    if header.fields[0].name:
        raise NpyError("has fields; save each as an array of its own, or all as a .npy file")
    _check_size(header, info.file_size, "data")
    opened.seek(info.header_offset)
    local = opened.read(_LOCAL_HEADER_BYTES)
    begin = info.header_offset + len(local) + sum(struct.unpack("<HH", local[-4:]))
    if info.compress_type == ZIP_STORED and info.compress_size != info.file_size:
        raise NpyError(f"has {info.file_size} bytes stored as {info.compress_size}: the archive is damaged")
    if size is not None and begin + info.compress_size > size:
        raise NpyError(f"reaches beyond the {size} bytes of the file: the archive is damaged")
    return header, begin


@contextmanager
def open_source(opened: BinaryIO, header: SourceHeader) -> "Iterator[Source]":
    """Read from an open file that has this header."""
    with ExitStack() as stack:
        inflated = {}
        if any(member.compressed for member in header.form):
            with _damage_told():
                archive = stack.enter_context(_open_archive(opened))
            names = [member.name for member in header.form if member.compressed]
            inflated = {name: stack.enter_context(closing(_Inflated(archive, name))) for name in names}
        yield Source(opened, header, inflated)


class _Inflated:
    """The decompressed bytes of one member, for `_read`; to go back is to decompress from the begin again."""

    def __init__(self, archive: ZipFile, name: str) -> None:
        self._archive = archive
        self._name = name
        self._stream: IO[bytes] | None = None
        self._at = 0

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def seek(self, place: int) -> None:
        with _damage_told():
            if self._stream is None or place < self._at:
                self.close()
                self._stream = self._archive.open(self._name + _MEMBER_SUFFIX)
                self._at = 0
        skipped = memoryview(bytearray(min(place - self._at, _PIECE_BYTES)))
        while self._at < place:
            self.readinto(skipped[: place - self._at])

    def readinto(self, view: memoryview) -> int:
        assert self._stream is not None
        with _damage_told():
            got: int = self._stream.readinto(view[:_PIECE_BYTES])  # type: ignore[attr-defined]
            if not got and len(view):
                raise EOFError(f"array {self._name!r} ends early")
        self._at += got
        return got


class Source:
    """An open episode file; ranges of steps are best asked for in ascending order.

    Errors: EOFError where the file ends early, NpyError where it is a damaged archive, OSError.
    """

    def __init__(self, opened: BinaryIO, header: SourceHeader, inflated: dict[str, _Inflated]) -> None:
        self._opened = opened
        self._header = header
        self._inflated = inflated
        self._last: dict[str, tuple[int, np.ndarray]] = {}

    def steps(self, first: int, count: int) -> dict[str, np.ndarray]:
        """{feature: (count, *step shape)} of the steps [first, first + count), in the file's own byte order."""
        assert 0 <= first <= first + count <= self._header.steps, (first, count)
        found: dict[str, np.ndarray] = {}
        for member, offset in zip(self._header.form, self._header.offsets, strict=True):
            if member.shape is None:
                continue
            read = self._inflate_steps if member.compressed else self._read_steps
            found |= _by_feature(member, read(member, offset, first, count))
        return found

    def values(self) -> dict[str, np.ndarray]:
        """{feature: array without an axis} of the values of the whole episode, in the file's own byte order."""
        found: dict[str, np.ndarray] = {}
        for member, offset in zip(self._header.form, self._header.offsets, strict=True):
            if member.shape is None:
                found |= _by_feature(member, _read(self._file(member), offset, 1, _element(member)).reshape(()))
        return found

    def _file(self, member: Member) -> BinaryIO:
        return cast(BinaryIO, self._inflated[member.name]) if member.compressed else self._opened

    def _inflate_steps(self, member: Member, offset: int, first: int, count: int) -> np.ndarray:
        # The windows of the last range and of this one mostly overlap: decompressing all from the begin is not needed.
        last_first, last = self._last.get(member.name, (0, None))
        known = last[first - last_first :][:count] if last is not None and first >= last_first else None
        if known is None or not len(known):
            steps = self._read_steps(member, offset, first, count)
        elif len(known) == count:
            return known
        else:
            steps = np.empty((count, *known.shape[1:]), known.dtype)
            steps[: len(known)] = known
            steps[len(known) :] = self._read_steps(member, offset, first + len(known), count - len(known))
        self._last[member.name] = first, steps
        return steps

    def _read_steps(self, member: Member, offset: int, first: int, count: int) -> np.ndarray:
        assert member.shape is not None
        opened, total, dtype = self._file(member), self._header.steps, _element(member)
        columns = prod(member.shape)
        if not member.fortran_order:
            steps = _read(opened, offset + first * columns * dtype.itemsize, count * columns, dtype)
            return steps.reshape(count, *member.shape)
        # In Fortran order time runs fastest: each element of a step has its own column of `total` elements.
        apart = (columns - 1) * total + count
        begin = offset + first * dtype.itemsize
        if total - count <= _GAP_BYTES // dtype.itemsize and apart * dtype.itemsize <= _ONE_READ_BYTES:
            whole = _read(opened, begin, apart, dtype)
            table = as_strided(whole, (columns, count), (total * dtype.itemsize, dtype.itemsize))
        else:
            table = np.empty((columns, count), dtype)
            for column in range(columns):
                table[column] = _read(opened, begin + column * total * dtype.itemsize, count, dtype)
        return np.ascontiguousarray(table.reshape(*reversed(member.shape), count).T)


def _by_feature(member: Member, elements: np.ndarray) -> dict[str, np.ndarray]:
    if elements.dtype.names is None:
        return {member.name or WINDOW: _true_or_false(elements)}
    return {name: _true_or_false(elements[name]) for name in elements.dtype.names}


def _true_or_false(array: np.ndarray) -> np.ndarray:
    """The array, with bools that are 0 or 1: a file may hold any bytes for them, which not all code reads alike."""
    return array.view(np.uint8) != 0 if array.dtype == np.bool_ else array


@lru_cache(maxsize=256)
def _element(member: Member) -> "np.dtype[Any]":
    """The dtype of a member's elements."""
    plain = [DTYPES[f.dtype].newbyteorder(">") if f.big_endian else DTYPES[f.dtype] for f in member.fields]
    if not member.fields[0].name:
        return plain[0]
    return np.dtype(
        {
            "names": [field.name for field in member.fields],
            "formats": [(dtype, field.shape) for dtype, field in zip(plain, member.fields, strict=True)],
            "offsets": [field.offset for field in member.fields],
            "itemsize": member.itemsize,
        }
    )


def _read(opened: BinaryIO, begin: int, count: int, dtype: "np.dtype[Any]") -> np.ndarray:
    values = np.empty(count, dtype)
    view = values.view(np.uint8).data
    opened.seek(begin)
    while len(view):
        got = opened.readinto(view)  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        view = view[got:]
    return values
