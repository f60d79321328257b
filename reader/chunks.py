"""Chunks of an epoch: some batches of windows at a time, gathered in NumPy, delivered to `tf.data`."""

import os
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from shards.features import Feature
from shards.gather import Gatherer
from shards.memory import Buffers

from .order import Order
from .targets import Batch

CHUNK_BYTES = 2**24  # gathered in one call: small against a pool, large against the 0.1 ms that a call costs
CHUNK_BATCHES = 128
PARALLEL_CHUNKS = min(4, os.cpu_count() or 1)  # gathers in flight; one copies about 4 GB/s


class Chunks:
    """Chunk i of an epoch is the windows [i * size, (i + 1) * size) of its order; the last may be smaller."""

    def __init__(self, gatherer: Gatherer, order: Order, columns: Sequence[Feature], size: int, windows: int) -> None:
        self._gatherer, self._order, self._columns = gatherer, order, columns
        self._size, self._windows = size, windows
        idle = PARALLEL_CHUNKS + 4  # those being filled, one prefetched, and some that batches still hold
        self._buffers = [Buffers(size * column.nbytes, idle) for column in columns]

    def __len__(self) -> int:
        return -(-self._windows // self._size)

    def fill(self, epoch: int, chunk: int) -> list[np.ndarray]:
        """One array (n, ...) a column: the windows of a chunk, in memory that is used again once nobody reads it."""
        begin = chunk * self._size
        end = min(begin + self._size, self._windows)
        outs = [
            buffers.array((end - begin, *column.shape), column.numpy_dtype)
            for buffers, column in zip(self._buffers, self._columns, strict=True)
        ]
        at = 0
        for shards, rows in self._order.parts(epoch, begin, end):
            self._gatherer.gather(shards, rows, [out[at : at + len(rows)] for out in outs])
            at += len(rows)
        return outs


def batches_per_chunk(batch_bytes: int) -> int:
    """How many batches make a chunk."""
    return max(1, min(CHUNK_BYTES // batch_bytes, CHUNK_BATCHES))


def chunk_function(chunks: Chunks, columns: Sequence[Feature]) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
    """(epoch, chunk) -> {name: (n, length, ...)} as a function for `Dataset.map`.

    TensorFlow keeps every NumPy function until the process ends, so this one does not keep `chunks` alive: the dataset
    that maps it must.
    """
    weak = weakref.ref(chunks)

    def fill(epoch: np.int64, chunk: np.int64) -> list[np.ndarray]:
        alive = weak()
        if alive is None:
            raise RuntimeError("the dataset of reader.load is gone: keep it, and call load outside of tf.data")
        return alive.fill(int(epoch), int(chunk))

    def gather(epoch: tf.Tensor, chunk: tf.Tensor) -> Batch:
        filled = tf.numpy_function(fill, [epoch, chunk], [tf.as_dtype(column.numpy_dtype) for column in columns])
        return {
            column.name: tf.ensure_shape(values, (None, *column.shape))
            for column, values in zip(columns, filled, strict=True)
        }

    return tf.autograph.experimental.do_not_convert(gather)  # type: ignore[no-any-return]
