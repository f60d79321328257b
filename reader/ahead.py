"""Pieces of shards on their way into memory: mapped or streamed, a pool ahead of the windows that are gathered."""

import mmap
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from shards.errors import ShardError
from shards.gather import Records
from shards.manifest import Manifest
from shards.memory import Buffers
from shards.pieces import PIECE_BYTES, Piece, map_piece
from shards.windows import Int64s

Read = Callable[[Piece], NDArray[np.uint8]]  # the (records, record_bytes) of a piece; may raise ShardError

_READERS = 8  # pieces read at a time: object stores serve many requests side by side
_READ_BYTES = 2**17  # copied from TensorFlow to Python at a time; what fits a cache is copied six times faster


class Ahead:
    """`ahead(i)` are the records of piece i, as soon as they are there; `expect` has them read before they are needed.

    The last `keep` pieces that were asked for, or expected, stay. Safe to use from several threads.
    """

    def __init__(self, manifest: Manifest, pieces: Sequence[Piece], read: Read, keep: int) -> None:
        executor = ThreadPoolExecutor(_READERS, thread_name_prefix="read-ahead")

        def records(i: int) -> Records:
            return Records.of(manifest, pieces[i], read(pieces[i]))

        weakref.finalize(self, executor.shutdown, wait=False, cancel_futures=True)
        self._lock, self._keep = Lock(), keep
        self._read: Callable[[int], Future[Records]] = lambda i: executor.submit(records, i)
        self._reading: OrderedDict[int, Future[Records]] = OrderedDict()  # the last asked for comes last

    def __call__(self, i: int) -> Records:
        """The records of piece i. Errors: ShardError; the next call tries again."""
        with self._lock:
            reading = self._begin(i)
        return reading.result()

    def expect(self, pieces: Int64s) -> None:
        """Begin to read these, if they are not there."""
        with self._lock:
            for i in pieces[: self._keep].tolist():
                self._begin(i)

    def _begin(self, i: int) -> "Future[Records]":
        reading = self._reading.pop(i, None)
        if reading is None or (reading.done() and reading.exception() is not None):
            reading = self._read(i)
        self._reading[i] = reading
        if len(self._reading) > self._keep:
            self._reading.popitem(last=False)
        return reading


def mapping(record_bytes: int, ahead: bool = True) -> Read:
    """Pieces of local files as memory maps; ahead: read from the disk, and in this process's memory, beforehand."""

    def read(piece: Piece) -> NDArray[np.uint8]:
        records = map_piece(piece, record_bytes, ahead)
        if ahead and records.nbytes <= 2 * PIECE_BYTES:  # a whole shard of shared records is too much at once
            records.reshape(-1)[:: mmap.PAGESIZE].max()
        return records

    return read


def streaming(record_bytes: int, most_records: int) -> Read:
    """Pieces read in one range each through TensorFlow's file systems, into memory that is used again."""
    buffers = Buffers(record_bytes * most_records, _READERS)

    def read(piece: Piece) -> NDArray[np.uint8]:
        begin, nbytes = piece.first * record_bytes, piece.records * record_bytes
        records = buffers.array((piece.records, record_bytes), np.dtype(np.uint8))
        raw, at = records.reshape(-1), 0
        try:
            if "://" in piece.file:
                with tf.io.gfile.GFile(piece.file, "rb") as remote:
                    remote.seek(begin)
                    while at < nbytes and (content := remote.read(min(_READ_BYTES, nbytes - at))):
                        raw[at : at + len(content)] = np.frombuffer(content, np.uint8)
                        at += len(content)
            else:
                with Path(piece.file).open("rb", buffering=0) as local:
                    if local.seek(0, 2) != piece.file_bytes:
                        raise ShardError(f"shard {piece.file} has changed since the dataset was opened; open it again")
                    local.seek(begin)
                    while at < nbytes and (count := local.readinto(raw[at:].data)):
                        at += count
        except (OSError, tf.errors.OpError) as error:
            raise ShardError(f"shard {piece.file} cannot be read: {error}; copy the dataset again") from error
        if at < nbytes:
            raise ShardError(f"shard {piece.file} was cut short at {begin + at} bytes; copy the dataset again")
        return records

    return read
