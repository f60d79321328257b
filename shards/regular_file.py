"""Reading a small file whole, in a folder where its name may be that of anything."""

import errno
import os
import stat
from pathlib import Path


def read_regular(file: str | Path, most: int) -> bytes:
    """The bytes of a local file that is regular and has `most` bytes at most.

    Errors: OSError for any other: a pipe is not waited for, and a device, which may never end, not read. ValueError for
    a name that no file can have.
    """
    with open(file, "rb", opener=_open_at_once) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file (a pipe or a device)", str(file))
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes; {most} at most are read", str(file))
        return opened.read(status.st_size)


def _open_at_once(file: str, flags: int) -> int:
    return os.open(file, flags | getattr(os, "O_NONBLOCK", 0))  # or a pipe would be waited for
