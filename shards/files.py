"""Local files, of which only regular ones are read: the names in a folder may be those of anything."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple


class FileState(NamedTuple):
    """What a file cannot be written to, cut short or replaced without another of: bytes, and when it was last modified.

    That is in ns, 0 where it is not known; `size` is -1 for what is there but no regular file that can be read. The
    number of the file itself is not among it: file systems of servers give the same file other ones.
    """

    size: int
    modified: int

    @staticmethod
    def of(found: os.stat_result) -> "FileState":
        """That of a file, from what the system says of it."""
        return FileState(found.st_size if stat.S_ISREG(found.st_mode) else -1, found.st_mtime_ns)


def open_regular(file: str | Path) -> BinaryIO:
    """Open a local file, which must be regular, for reading.

    Errors: OSError for any other: a pipe is not waited for, and a device, which may never end, not read. ValueError for
    a name that no file can have.
    """
    opened = open(file, "rb", opener=_open_at_once)  # noqa: SIM115 the caller closes it
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(errno.EINVAL, "it is no regular file (a pipe or a device)", str(file))
    return opened


def read_regular(file: str | Path, most: int) -> bytes:
    """The bytes of a local file that is regular and has `most` bytes at most. Errors: those of `open_regular`."""
    with open_regular(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes; {most} at most are read", str(file))
        return opened.read(size)


def _open_at_once(file: str, flags: int) -> int:
    return os.open(file, flags | getattr(os, "O_NONBLOCK", 0))  # or a pipe would be waited for
