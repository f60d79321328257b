"""Plain reads of shards, local or at a URL, of which each is told apart from a file that has changed meanwhile.

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
from .remote import side_by_side
from .remote_shard import RemoteShard, changed

_ADVISED_BYTES = 2**17  # Linux reads no more ahead than this for one call, unless told to for all files
_HASHED_BYTES = 2**20  # what fits a cache


class ShardFile:
    """A shard that is open as long as somebody holds this. Safe to use from several threads.

    Errors: ShardError, which names the file, from every method.
    """

    most_bytes = 2**30  # of one read; macOS refuses 2**31

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
                        raise changed(self._file)
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
            raise changed(self._file)

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


def open_shard(piece: Piece) -> ShardFile | RemoteShard:
    """The shard of a piece, to be read from."""
    return ShardFile(piece) if piece.remote is None else piece.remote


def read_piece(piece: Piece, into: NDArray[np.uint8]) -> None:
    """Fill (records, record_bytes) with the records of a piece. Errors: ShardError."""
    file, memory = open_shard(piece), into.reshape(-1).data
    begin, nbytes, most = piece.first * into.shape[1], into.size, file.most_bytes
    ranges = [(at, begin + at, min(most, nbytes - at)) for at in range(0, nbytes, most)]
    if piece.remote is None:
        file.read(memory, ranges)
    else:
        side_by_side(lambda each: file.read(memory, [each]), ranges)
    file.check()


def check_digests(shards: Sequence[Piece], digests: Sequence[str]) -> None:
    """ShardError unless each shard, given as a whole piece, has this SHA-256; several are read at a time."""
    with ThreadPoolExecutor(core_count()) as pool:  # hashing lets other threads run
        for _ in pool.map(_check_digest, shards, digests):
            pass


def _check_digest(shard: Piece, digest: str) -> None:
    if digest_of(shard) != digest:
        raise ShardError(
            f"shard {shard.file} is damaged: its SHA-256 is not the manifest's; copy or build the dataset again"
        )


def digest_of(shard: Piece) -> str:
    """The SHA-256 of a shard that is given as a whole piece. Errors: ShardError."""
    file, found = open_shard(shard), sha256()
    block = _HASHED_BYTES if shard.remote is None else file.most_bytes
    memory = memoryview(bytearray(block))
    for at in range(0, shard.state.size, block):
        part = memory[: shard.state.size - at]
        file.read(part, [(0, at, len(part))])
        found.update(part)
    file.check()
    return found.hexdigest()
