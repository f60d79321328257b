"""Files, local or at URLs: one function an operation.

Beam is imported only for URLs, so that `plan` and the launching of local jobs start at once.
"""

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast
from uuid import uuid4

from shards.errors import OptionError, OutputError
from shards.files import FileState, open_regular
from shards.remote import OpenUrl, is_url, told

from .url_files import UrlFiles, set_flags, url_files

Buffer = bytes | memoryview
TEMPORARY = ".tmp"
#: Of a file at a URL, which is read on and on.
AHEAD = 2**22
_WRITTEN_BYTES = 2**23


def is_remote(path: str) -> bool:
    """Whether a path is a URL such as gs://bucket/folder, for Beam's FileSystems to open."""
    return is_url(path)


@contextmanager
def _at_url(path: str) -> Iterator[UrlFiles]:
    """What is there for a URL; whatever it raises becomes an OSError."""
    with told(path):
        with quiet_log():
            files = url_files(path)
        yield files


def reach_stores(paths: Iterable[str], flags: Sequence[str]) -> None:
    """Have this process reach the stores of these paths as Beam's flags say. Errors: OptionError without Beam."""
    if not any(map(is_remote, paths)):
        return
    try:
        with quiet_log():
            set_flags(flags)
    except ImportError:
        raise OptionError(
            "URLs need Apache Beam: pip install 'episode-windows[gcp]' for gs://, [aws] for s3://"
        ) from None


@contextmanager
def quiet_log() -> Iterator[None]:
    """No log at all, for as long as it lasts."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def join(folder: str, *names: str) -> str:
    """The path of a file in a folder."""
    return "/".join([folder.rstrip("/"), *names])


def write_file(path: str, data: Buffer) -> None:
    """Write a file so that it is there whole or not at all: under a temporary name, to the disk, then renamed.

    An object store shows an object only when it is whole, and has it under its own name at once.
    """
    write_pieces(path, [data])


def write_pieces(path: str, pieces: Iterable[Buffer]) -> None:
    """`write_file` with bytes that are made as they are written."""
    if is_remote(path):
        with _at_url(path) as files, files.create(path) as opened:
            for piece in pieces:
                for begin in range(0, len(piece), _WRITTEN_BYTES):  # or the client would hold all of it once more
                    opened.write(piece[begin : begin + _WRITTEN_BYTES])
        return
    temporary = f"{path}.{uuid4().hex[:8]}{TEMPORARY}"  # of this call alone, should two processes write one file
    try:
        with open(temporary, "wb") as opened:
            opened.writelines(pieces)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)  # a full disk then has room for the rest
        raise


def open_file(path: str, ahead: int = AHEAD) -> BinaryIO:
    """Open a file for reading bytes; seekable. Errors: OSError, also for what is no regular file.

    Of a URL, `ahead` bytes at least are read at a time.
    """
    if not is_remote(path):
        return open_regular(path)
    with _at_url(path) as files:
        return cast(BinaryIO, OpenUrl(files.open(path, max(ahead, 1)), path))


def read_file(path: str, start: int = 0, size: int = -1) -> bytes:
    """`size` bytes of a file from `start` on; all the rest by default."""
    with open_file(path, AHEAD if size < 0 else min(size, AHEAD)) as opened:
        opened.seek(start)
        return opened.read(size) if size >= 0 else opened.read()


def exists(path: str) -> bool:
    """Whether there is a file (or a local folder) at `path`."""
    if not is_remote(path):
        return os.path.lexists(path)
    with _at_url(path) as files:
        return files.state(path) is not None


def list_files(folder: str) -> list[str]:
    """The names of what lies right in a folder; folders end in a slash. Empty where there is no such folder."""
    if is_remote(folder):
        below = (path[len(folder.rstrip("/")) + 1 :] for path, _ in files_below(folder))
        return sorted({head + slash for head, slash, _ in (name.partition("/") for name in below)})
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries)
    except FileNotFoundError:
        return []


def file_state(path: str) -> FileState:
    """The state of a file, without opening it."""
    if is_remote(path):
        with _at_url(path) as files:
            return files.state(path) or FileState(-1, 0)
    try:
        return FileState.of(os.stat(path))
    except OSError:
        return FileState(-1, 0)


def files_below(folder: str) -> Iterator[tuple[str, FileState]]:
    """(path, state) of every file in a folder and the folders below; links to folders are followed, loops are not."""
    if is_remote(folder):
        with _at_url(folder) as urls:
            listed = list(urls.below(folder))
        yield from listed
        return
    seen = set()

    def refuse(error: OSError) -> None:
        raise error

    for parent, names, files in os.walk(folder, onerror=refuse, followlinks=True):
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        names.sort()
        for name in sorted(files):
            path = os.path.join(parent, name)
            yield path, file_state(path)


def make_folder(folder: str) -> None:
    """Make a folder with all above it; no harm where it is there."""
    if not is_remote(folder):  # object stores have no folders
        os.makedirs(folder, exist_ok=True)


def move_files(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Rename files, replacing what is there; on return, local ones are where they belong even if the power fails."""
    if sources and is_remote(sources[0]):
        with _at_url(sources[0]) as files:
            files.move(sources, targets)
        return
    for source, target in zip(sources, targets, strict=True):
        os.replace(source, target)
    for folder in {os.path.dirname(target) for target in targets}:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def delete_files(paths: Sequence[str]) -> None:
    """Delete files that are there; no harm where local ones are gone."""
    if paths and is_remote(paths[0]):
        with _at_url(paths[0]) as files:
            files.delete(paths)
        return
    for path in paths:
        Path(path).unlink(missing_ok=True)


def delete_folder(folder: str) -> None:
    """Delete a folder and all in it; no harm where it is gone."""
    if is_remote(folder):
        delete_files([path for path, _ in files_below(folder)])
    elif os.path.lexists(folder):
        shutil.rmtree(folder)


def delete_empty_folder(folder: str) -> None:
    """Delete a local folder; OSError if anything is in it. A URL's goes with the last file in it."""
    if not is_remote(folder):
        os.rmdir(folder)


def free_bytes(folder: str) -> int | None:
    """Bytes that are free where a local folder is or would be; None for a URL."""
    if is_remote(folder):
        return None
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


@contextmanager
def lock_folder(folder: str) -> Iterator[int | None]:
    """Hold a local folder, which is made if need be, for one build: the descriptor that holds it, None for a URL.

    The hold ends with the last process that has the descriptor, however it ends. Errors: OutputError if it is held.
    """
    if is_remote(folder):
        yield None
        return
    import fcntl

    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"another build is writing to {folder}: wait for its end, or choose another folder"
            ) from None
        except OSError as error:
            raise OutputError(
                f"{folder} cannot be locked against a second build ({error.strerror}): choose a folder on another disk"
            ) from error
        yield descriptor
    finally:
        os.close(descriptor)
