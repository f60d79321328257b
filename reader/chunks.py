"""Chunks of an epoch: some batches of windows at a time, gathered in NumPy, delivered to `tf.data`."""

import os
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from shards.memory import Buffers
from shards.record import Field

from .gather import Gatherer
from .order import Order
from .targets import Batch

CHUNK_BYTES = 2**24  # gathered in one call: small against a pool, large against the 0.1 ms that a call costs
CHUNK_BATCHES = 128
PARALLEL_CHUNKS = min(4, os.cpu_count() or 1)  # gathers in flight; one copies about 4 GB/s


class Chunks:
    """Chunk i of an epoch is the windows [i * size, (i + 1) * size) of its order; the last may be smaller."""

    def __init__(self, gatherer: Gatherer, order: Order, fields: Sequence[Field], size: int, windows: int) -> None:
        self._gatherer, self._order, self._fields = gatherer, order, fields
        self._size, self._windows = size, windows
        idle = PARALLEL_CHUNKS + 4  # those being filled, one prefetched, and some that batches still hold
        self._buffers = [Buffers(size * field.nbytes, idle) for field in fields]

    def __len__(self) -> int:
        return -(-self._windows // self._size)

    def fill(self, epoch: int, chunk: int) -> list[np.ndarray]:
        """One array (n, ...) a field: the windows of a chunk, in memory that is used again once nobody reads it."""
        begin = chunk * self._size
        end = min(begin + self._size, self._windows)
        outs = [
            buffers.array((end - begin, field.nbytes), np.dtype(np.uint8))
            for buffers, field in zip(self._buffers, self._fields, strict=True)
        ]
        at = 0
        for shards, rows in self._order.parts(epoch, begin, end):
            self._gatherer.gather(shards, rows, [out[at : at + len(rows)] for out in outs])
            at += len(rows)
        return [field.of(out) for field, out in zip(self._fields, outs, strict=True)]


def batches_per_chunk(batch_bytes: int) -> int:
    """How many batches make a chunk."""
    return max(1, min(CHUNK_BYTES // batch_bytes, CHUNK_BATCHES))


def chunk_function(chunks: Chunks, fields: Sequence[Field]) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
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
        filled = tf.numpy_function(fill, [epoch, chunk], [tf.as_dtype(field.feature.numpy_dtype) for field in fields])
        return {
            field.feature.name: tf.ensure_shape(values, (None, *field.feature.shape))
            for field, values in zip(fields, filled, strict=True)
        }

    return tf.autograph.experimental.do_not_convert(gather)  # type: ignore[no-any-return]
