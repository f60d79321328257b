"""Plain reads of shards, of which each is told apart from a file that has changed meanwhile.

Nothing is mapped: where a mapped file is cut short, or its disk fails, the system ends the process.
"""

import errno
import os
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from .cores import core_count
from .errors import ShardError
from .files import FileState
from .pieces import Piece

_MOST_AT_ONCE = 2**30  # macOS refuses 2**31
_ADVISED_BYTES = 2**17  # Linux reads no more ahead than this for one call, unless told to for all files
_HASHED_BYTES = 2**20  # what fits a cache


class ShardFile:
    """A shard that is open as long as somebody holds this. Safe to use from several threads.

    Errors: ShardError, which names the file, from every method.
    """

    def __init__(self, piece: Piece) -> None:
        self._file, self._state = piece.file, piece.state
        try:
            # A pipe that has taken its place would be waited for.
            self._descriptor = os.open(piece.file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise self._unreadable(error) from error
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def read(self, memory: memoryview, ranges: Iterable[tuple[int, int, int]]) -> None:
        """memory[place : place + nbytes] become the bytes from `at` on, for each (place, at, nbytes).

        They count once `check` has been called.
        """
        read, descriptor = os.preadv, self._descriptor  # a microsecond for each range that is small
        try:
            for place, at, nbytes in ranges:
                done = read(descriptor, [memory[place : place + nbytes]], at)
                while done < nbytes:
                    more = read(descriptor, [memory[place + done : place + nbytes]], at + done)
                    if more == 0:
                        raise self._changed()
                    done += more
        except OSError as error:
            raise self._unreadable(error) from error

    def check(self) -> None:
        """ShardError if the file has changed since the dataset was opened; else all that was read is as it was then."""
        try:
            state = FileState.of(os.fstat(self._descriptor))
        except OSError as error:
            raise self._unreadable(error) from error
        if state != self._state:
            raise self._changed()

    def advise(self, at: int, nbytes: int) -> None:
        """Let the system read these bytes from the disk beforehand, where it can be told to."""
        if hasattr(os, "posix_fadvise"):
            for begin in range(at, at + nbytes, _ADVISED_BYTES):
                length = min(_ADVISED_BYTES, at + nbytes - begin)
                os.posix_fadvise(self._descriptor, begin, length, os.POSIX_FADV_WILLNEED)

    def _unreadable(self, error: OSError) -> ShardError:
        full = error.errno in {errno.EMFILE, errno.ENFILE}
        remedy = "allow more open files (ulimit -n)" if full else "copy the dataset again"
        return ShardError(f"shard {self._file} cannot be read: {error.strerror}; {remedy}")

    def _changed(self) -> ShardError:
        return ShardError(f"shard {self._file} has changed since the dataset was opened; open it again")


def read_piece(piece: Piece, into: NDArray[np.uint8]) -> None:
    """Fill (records, record_bytes) with the records of a piece. Errors: ShardError."""
    file = ShardFile(piece)
    begin, nbytes = piece.first * into.shape[1], into.size
    file.read(
        into.reshape(-1).data,
        ((at, begin + at, min(_MOST_AT_ONCE, nbytes - at)) for at in range(0, nbytes, _MOST_AT_ONCE)),
    )
    file.check()


def check_digests(shards: Sequence[Piece], digests: Sequence[str]) -> None:
    """ShardError unless each shard, given as a whole piece, has this SHA-256; several are read at a time."""
    with ThreadPoolExecutor(core_count()) as pool:  # hashing lets other threads run
        for _ in pool.map(_check_digest, shards, digests):
            pass


def _check_digest(shard: Piece, digest: str) -> None:
    file, found, memory = ShardFile(shard), sha256(), memoryview(bytearray(_HASHED_BYTES))
    for at in range(0, shard.state.size, _HASHED_BYTES):
        part = memory[: shard.state.size - at]
        file.read(part, [(0, at, len(part))])
        found.update(part)
    file.check()
    if found.hexdigest() != digest:
        raise ShardError(
            f"shard {shard.file} is damaged: its SHA-256 is not the manifest's; copy or build the dataset again"
        )
