"""Pieces of shards on their way into memory: mapped or streamed, a pool ahead of the windows that are gathered."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Lock

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from shards.errors import ShardError
from shards.gather import Records
from shards.manifest import Manifest
from shards.memory import Buffers
from shards.pieces import Piece, map_piece
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

        self._lock = Lock()
        self._reading: Callable[[int], Future[Records]] = lru_cache(keep)(lambda i: executor.submit(records, i))

    def __call__(self, i: int) -> Records:
        """The records of piece i. Errors: ShardError."""
        with self._lock:
            reading = self._reading(i)
        return reading.result()

    def expect(self, pieces: Int64s) -> None:
        """Begin to read these, if they are not there."""
        with self._lock:
            for i in pieces.tolist():
                self._reading(i)


def mapping(record_bytes: int) -> Read:
    """Pieces of local files as memory maps, which the system begins to read from the disk."""
    return lambda piece: map_piece(piece, record_bytes, ahead=True)


def streaming(record_bytes: int, most_records: int) -> Read:
    """Pieces read in one range each through TensorFlow's file systems, into memory that is used again."""
    buffers = Buffers(record_bytes * most_records, _READERS)

    def read(piece: Piece) -> NDArray[np.uint8]:
        begin, nbytes = piece.first * record_bytes, piece.records * record_bytes
        records = buffers.array((piece.records, record_bytes), np.dtype(np.uint8))
        raw, at = records.reshape(-1), 0
        try:
            with tf.io.gfile.GFile(piece.file, "rb") as file:
                file.seek(begin)
                while at < nbytes and (content := file.read(min(_READ_BYTES, nbytes - at))):
                    raw[at : at + len(content)] = np.frombuffer(content, np.uint8)
                    at += len(content)
        except tf.errors.OpError as error:
            raise ShardError(f"shard {piece.file} cannot be read: {error.message}; copy the dataset again") from error
        if at < nbytes:
            raise ShardError(f"shard {piece.file} was cut short at {begin + at} bytes; copy the dataset again")
        return records

    return read
