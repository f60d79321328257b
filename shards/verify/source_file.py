"""Arrays of an episode file as NumPy reads them, for a proof that shares no code with what `pipeline` reads them by.

Nothing is mapped or unpickled, and nothing is loaded that has another size than is expected.
"""

import struct
import zlib
from contextlib import suppress
from math import prod
from typing import IO, Any, BinaryIO, cast
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy

from ..features import DTYPES, Feature
from ..remote import Place, open_file, size_of
from .check_shard import read_fully

#: The feature that a `.npy` file without fields holds.
_WINDOW = "window"
_MAX_HEADER = 65536
_MOST_INFLATED = 1040  # bytes that a byte of an archive can stand for


class SourceError(Exception):
    """An episode file is not what episodes.csv and the manifest say; why."""


def is_below(path: str) -> bool:
    """Whether a path stays below the folder that it is joined to; links are followed."""
    return "\0" not in path and not set(path.split("/")) & {"", ".", ".."}


class SourceFile:
    """The arrays of one episode of so many steps: `steps` of a feature along time, `value` of one of the episode.

    Both give stored dtypes, little-endian. A range of a C-order `.npy` file is read by itself; all else as a whole, and
    kept while this object is.
    Errors: SourceError.
    """

    def __init__(self, file: Place, steps: int) -> None:
        self._steps = steps
        try:
            self._opened = open_file(file)
        except OSError as error:
            raise _told(error) from None
        self._size = size_of(self._opened)
        self._archive: ZipFile | None = None
        self._loaded: dict[str, np.ndarray] = {}
        self._range = (0, 0, np.empty(0))
        try:
            if str(file).endswith(".npz"):
                self._archive = ZipFile(cast(Any, self._opened))
                names = [name.removesuffix(".npy") for name in self._archive.namelist()]
                if len(set(names)) < len(names):
                    raise SourceError("has two arrays of one name")
                self.names = frozenset(names)
            else:
                self._header = _read_header(self._opened)
                self._offset = self._opened.tell()
                promised = self._offset + prod(self._header[0]) * self._header[2].itemsize
                if promised != self._size:
                    raise SourceError(f"has {self._size} bytes, where its header promises {promised}")
                self.names = frozenset(self._header[2].names or {_WINDOW})
        except _DAMAGE as error:
            self.close()
            raise _told(error) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def steps(self, feature: Feature, first: int, end: int) -> np.ndarray:
        """The (end - first, *step shape) values of the steps [first, end) of a feature."""
        expected = (self._steps, *feature.shape[1:])
        try:
            if self._archive is not None:
                found = self._load(feature.name, expected)[first:end]
            else:
                found = self._read(feature, expected, first, end)
        except _DAMAGE as error:
            raise _told(error) from None
        return _stored(found, feature)

    def value(self, feature: Feature) -> np.ndarray:
        """The value of a feature of the whole episode, an array without an axis."""
        try:
            if self._archive is None:
                raise SourceError(f"has {feature.name} along time, where the dataset has one value an episode")
            return _stored(self._load(feature.name, ()), feature)
        except _DAMAGE as error:
            raise _told(error) from None

    def _load(self, name: str, expected: tuple[int, ...]) -> np.ndarray:
        """An array of an archive."""
        assert self._archive is not None
        if name not in self._loaded:
            info = self._archive.getinfo(name + ".npy")
            with self._archive.open(info) as stream:
                shape, fortran, dtype = _read_header(stream)
                _check_shape(name, shape, expected)
                if dtype.names is not None:
                    raise SourceError(f"has fields in {name}")
                nbytes = stream.tell() + prod(shape) * dtype.itemsize
                if nbytes != info.file_size or nbytes > _MOST_INFLATED * (self._size + 1):
                    raise SourceError(f"has {name} in {info.file_size} bytes, where its header promises {nbytes}")
                self._loaded[name] = _in_order(_read_array(stream, prod(shape), dtype), shape, fortran)
        return self._loaded[name]

    def _read(self, feature: Feature, expected: tuple[int, ...], first: int, end: int) -> np.ndarray:
        """Steps of the array of a `.npy` file, or of one of its fields."""
        shape, fortran, dtype = self._header
        name = feature.name if dtype.names else None
        own = dtype[name].shape if name else ()
        _check_shape(feature.name, (*shape, *own), expected)
        if fortran:
            if "" not in self._loaded:
                self._opened.seek(self._offset)
                self._loaded[""] = _in_order(_read_array(self._opened, prod(shape), dtype), shape, fortran)
            found = self._loaded[""][first:end]
        elif self._range[:2] == (first, end):  # of another field
            found = self._range[2]
        else:
            self._opened.seek(self._offset + first * prod(shape[1:]) * dtype.itemsize)
            found = _read_array(self._opened, (end - first) * prod(shape[1:]), dtype).reshape(end - first, *shape[1:])
            self._range = first, end, found
        return found[name] if name else found


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """(shape, whether in Fortran order, dtype) of a `.npy` file or member, read up to where the data begin."""
    version = npy.read_magic(cast(Any, stream))
    # 3.0 is 2.0 but for the letters in the names of fields, and features' names are ASCII.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(cast(Any, stream), max_header_size=_MAX_HEADER)
    if dtype.hasobject:
        raise SourceError("holds Python objects, which are never unpickled")
    return shape, fortran, dtype


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise SourceError(f"has {name} of shape {shape}, where the dataset was made from {expected}")


def _read_array(stream: IO[bytes], count: int, dtype: "np.dtype[Any]") -> np.ndarray:
    array = np.empty(count, dtype)
    if count and read_fully(cast(BinaryIO, stream), array.view(np.uint8).data) < array.nbytes:
        raise SourceError("ends early")
    return array


def _in_order(flat: np.ndarray, shape: tuple[int, ...], fortran: bool) -> np.ndarray:
    return np.ascontiguousarray(flat.reshape(shape[::-1]).transpose()) if fortran else flat.reshape(shape)


def _stored(array: np.ndarray, feature: Feature) -> np.ndarray:
    """In the dtype that the dataset has, C-order and little-endian; NumPy saves bfloat16 as two bytes of nothing."""
    if array.dtype == np.dtype("V2"):
        array = np.ascontiguousarray(array).view(DTYPES["bfloat16"])
    if array.dtype == np.bool_:
        array = array.view(np.uint8) != 0  # a file may hold any bytes for them
    known = DTYPES.get(array.dtype.name)  # whatever its byte order
    if known is None or (known.kind == "c" and feature.numpy_dtype.kind != "c"):
        raise SourceError(f"has {feature.name} of dtype {array.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array.astype(feature.numpy_dtype, copy=False)).reshape(array.shape)


#: Whatever NumPy and zipfile raise for damage.
_DAMAGE = (
    *(OSError, BadZipFile, zlib.error, struct.error, ValueError, EOFError, KeyError, RuntimeError),
    *(NotImplementedError, OverflowError, SyntaxError, TypeError, MemoryError),
)


def _told(error: Exception) -> SourceError:
    if isinstance(error, OSError):
        return SourceError(f"cannot be read: {error.strerror or error}")
    why = str(error) or type(error).__name__
    with suppress(IndexError):
        why = why.splitlines()[0]
    return SourceError(f"cannot be read as NumPy saves arrays: {why:.200}")
