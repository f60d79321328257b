"""Files at URLs, such as gs://bucket/folder, read as ranges of bytes: whatever fsspec opens."""

import os
import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, cast

from .errors import OptionError
from .files import FileState, open_regular, read_regular

T = TypeVar("T")
U = TypeVar("U")

#: A local path, or a URL.
Place = Path | str

_SIDE_BY_SIDE = 32  # requests under way: each takes some 50 ms, of which the network is busy for a few
_BLOCK_BYTES = 2**24  # of a file that is read from its beginning to its end
_EXTRAS = {"gs": "gcp", "gcs": "gcp", "s3": "aws", "s3a": "aws"}
_VERSIONS = ("generation", "ETag", "etag", "mtime", "LastModified", "last_modified", "created")  # of an object


class RemoteFiles(Protocol):
    """How files at URLs are read. Errors: OSError, and FileNotFoundError for what is not there."""

    def read(self, url: str, begin: int, end: int) -> bytes:
        """The bytes [begin, end) of a file, fewer where it ends before."""

    def states(self, folder: str, names: Collection[str]) -> dict[str, FileState]:
        """The state of each of these files of a folder, but those that are not there."""


def is_url(path: Place) -> bool:
    """Whether a path is a URL such as gs://bucket/folder."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(path)) is not None


def place_of(path: Place) -> Place:
    """A dataset's folder, as it is called from here on.

    >>> place_of("gs://bucket/out/"), place_of("out/").name
    ('gs://bucket/out', 'out')
    """
    return str(path).rstrip("/") if is_url(path) else Path(path)


def file_in(folder: Place, name: str) -> Place:
    """The place of a file in a folder."""
    return f"{folder}/{name}" if is_url(folder) else Path(folder, name)


def read_small(place: Place, most: int, remote: RemoteFiles | None = None) -> bytes:
    """The bytes of a file that has `most` at most. Errors: OSError, ValueError for a name that no file can have."""
    if not is_url(place):
        return read_regular(place, most)
    data = (remote or FSSPEC).read(str(place), 0, most + 1)
    if len(data) > most:
        raise OSError(f"it has more than {most} bytes")
    return data


def states_of(folder: Place, names: Collection[str], remote: RemoteFiles | None = None) -> dict[str, FileState]:
    """The state of each of these files of a folder, but those that are not there. Errors: OSError."""
    if is_url(folder):
        return (remote or FSSPEC).states(str(folder), names)
    states = {}
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError):
            states[name] = FileState.of(os.stat(file_in(folder, name)))
    return states


def open_file(place: Place) -> BinaryIO:
    """Open a file to be read from its beginning to its end; at a URL, so many megabytes a request. Errors: OSError."""
    return FSSPEC.open(str(place)) if is_url(place) else open_regular(place)


def size_of(opened: BinaryIO) -> int:
    """The bytes of an open file."""
    here = opened.tell()
    size = opened.seek(0, 2)
    opened.seek(here)
    return size


def why(error: OSError) -> str:
    """What an error says, without the number and the file's name."""
    return error.strerror or str(error)


def side_by_side(function: Callable[[T], U], items: Collection[T]) -> list[U]:
    """function(item) of each, in their order, with many requests under way at a time."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _SIDE_BY_SIDE)) as pool:
        return list(pool.map(function, items))


@contextmanager
def told(url: str) -> Iterator[None]:
    """Make an OSError, which names the URL, of whatever a client of a store raises: each has errors of its own."""
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        raise OSError(f"{url}: {str(error) or type(error).__name__}") from error


class OpenUrl:
    """A file at a URL that is open for reading, with no errors but OSErrors."""

    def __init__(self, opened: BinaryIO, path: str) -> None:
        self._opened, self._path = opened, path
        self.tell, self.seekable, self.close = opened.tell, opened.seekable, opened.close

    def __enter__(self) -> "OpenUrl":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def seek(self, place: int, whence: int = 0) -> int:
        """As of any file."""
        with told(self._path):
            return self._opened.seek(place, whence)

    def read(self, size: int = -1) -> bytes:
        """As of any file."""
        with told(self._path):
            return self._opened.read(size)

    def readinto(self, memory: memoryview) -> int:
        """As of any file."""
        data = self.read(len(memory))
        memory[: len(data)] = data
        return len(data)


class Fsspec:
    """`RemoteFiles` by fsspec: each range is one request, each thousand files of a folder another.

    Keys, endpoints and the like are those that fsspec's file systems find in the environment and in its configuration.
    Errors: OptionError besides, where a package for this kind of URL is not installed.
    """

    def read(self, url: str, begin: int, end: int) -> bytes:
        """As of `RemoteFiles`."""
        with _opened(url) as (files, path):
            data: bytes = files.cat_file(path, start=begin, end=end)
        return data

    def states(self, folder: str, names: Collection[str]) -> dict[str, FileState]:
        """As of `RemoteFiles`."""
        listed: dict[str, FileState] = {}
        if len(names) > 1:
            with suppress(OSError):  # files may be there to be read by those who may not list them
                listed = self.listed(folder)
        found = {name: listed[name] for name in names if name in listed}

        def ask(name: str) -> FileState | None:  # of what no listing tells, as web servers have none
            try:
                with _opened(f"{folder}/{name}") as (files, path):
                    files.invalidate_cache()
                    return _state(files.info(path))
            except FileNotFoundError:
                return None

        rest = [name for name in names if name not in found]
        asked = zip(rest, side_by_side(ask, rest), strict=True)
        return found | {name: state for name, state in asked if state is not None}

    def listed(self, folder: str) -> dict[str, FileState]:
        """The state of each file right in a folder that a listing tells the size of."""
        try:
            with _opened(folder) as (files, path):
                files.invalidate_cache()  # or it might tell of what was there before
                entries = [entry for entry in files.ls(path, detail=True) if entry["type"] == "file"]
        except FileNotFoundError:
            return {}
        return {entry["name"].rpartition("/")[2]: _state(entry) for entry in entries if entry.get("size") is not None}

    def folders(self, folder: str) -> list[str]:
        """The names of the folders right in a folder."""
        try:
            with _opened(folder) as (files, path):
                entries = files.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return sorted(entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory")

    def open(self, url: str) -> BinaryIO:
        """Open a file to be read on and on."""
        with _opened(url) as (files, path):
            if not files.info(path)["size"]:
                return BytesIO()  # of which servers give no range
            opened = files.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
        return cast(BinaryIO, OpenUrl(opened, url))


FSSPEC = Fsspec()


@contextmanager
def _opened(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL, and the path in it; whatever its client raises becomes an OSError."""
    scheme = url.partition("://")[0].lower()
    extra = _EXTRAS.get(scheme)
    install = f"pip install 'episode-windows[{extra}]'" if extra else "pip install fsspec and what it asks for"
    try:
        from fsspec.core import url_to_fs

        files, path = url_to_fs(url)
    except ImportError as error:
        raise OptionError(f"{url} cannot be read: {error}; {install}, or copy the folder to a local one") from None
    except OSError as error:
        raise OSError(f"{url}: {why(error)}") from error
    except Exception as error:  # some need more than a URL tells
        raise OptionError(f"{url} cannot be read: {error}; copy the folder to a local one") from None
    try:
        yield files, path
    except FileNotFoundError:
        raise
    except Exception as error:
        raise OSError(f"{url}: {str(error) or type(error).__name__}") from error


def _state(info: dict[str, Any]) -> FileState:
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return FileState(int(info["size"]), int.from_bytes(sha256(version.encode()).digest()[:7], "big"))
