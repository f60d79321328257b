"""Chunks of an epoch: some steps' windows at a time, gathered in NumPy, delivered to `tf.data`."""

import os
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from shards.features import Feature
from shards.memory import Buffers

from .ahead import SingleWindows, WholePieces
from .epochs import plain
from .exiting import until_exit
from .order import Order
from .steps import Steps
from .targets import Batch

CHUNK_BYTES = 2**25  # gathered in one call: small against a pool, large against the 0.1 ms that a call costs
CHUNK_STEPS = 128
PARALLEL_CHUNKS = min(4, os.cpu_count() or 1)  # gathers in flight; one copies about 4 GB/s


class Chunks:
    """The windows of this part of the steps [step, step + `every`) of an epoch are a chunk."""

    def __init__(
        self,
        source: WholePieces | SingleWindows,
        order: Order,
        columns: Sequence[Feature],
        steps: Steps,
        every: int,
    ) -> None:
        self._source, self._order = source, order
        self.columns, self.steps, self.every = columns, steps, every
        idle = PARALLEL_CHUNKS + 4  # those being filled, one prefetched, and some that batches still hold
        self._buffers = [Buffers(self.every * steps.part_batch * column.nbytes, idle) for column in columns]

    def fill(self, epoch: int, step: int) -> list[np.ndarray]:
        """One array (n, ...) a column: the windows of a chunk, in memory that is used again once nobody reads it."""
        positions = self.steps.positions(step, step + self.every)
        pieces, rows = self._order.at(epoch, positions)
        self._source.expect(np.unique(pieces))  # side by side, and before those of the next pool
        last = min((step + self.every) * self.steps.batch, self.steps.windows) - 1  # which "repeat" goes beyond
        self._source.expect(self._order.ahead(epoch, last))
        outs = [
            buffers.array((len(positions), *column.shape), column.numpy_dtype)
            for buffers, column in zip(self._buffers, self.columns, strict=True)
        ]
        self._source.gather(pieces, rows, outs)
        return outs


class Numbers:
    """The same of the numbers of windows alone, counted through the pieces, which have so many `windows` each."""

    columns = (Feature("number", "int64", ()),)

    def __init__(self, order: Order, windows: Sequence[int], steps: Steps) -> None:
        self._order, self.steps = order, steps
        self._firsts = np.cumsum([0, *windows])
        self.every = steps_per_chunk(8 * steps.part_batch)

    def fill(self, epoch: int, step: int) -> list[np.ndarray]:
        """An int64 array (n,)."""
        pieces, rows = self._order.at(epoch, self.steps.positions(step, step + self.every))
        return [self._firsts[pieces] + rows]


def steps_per_chunk(batch_bytes: int) -> int:
    """How many steps make a chunk, whose batches have so many bytes."""
    return max(1, min(CHUNK_BYTES // batch_bytes, CHUNK_STEPS))


def epoch_function(chunks: Chunks | Numbers, batch_size: int, alone: bool = True) -> Callable[..., tf.data.Dataset]:
    """The stage (epoch, step) -> {name: (B, length, ...)}, ...: all batches of an epoch from this step on.

    alone: chunks are filled side by side. TensorFlow ends in a crash where a distributed iterator is deleted while two
    are, so for a strategy they are filled one by one.

    TensorFlow keeps every NumPy function until the process ends, so this one does not keep `chunks` alive: the dataset
    that maps it must.
    """
    weak = weakref.ref(chunks)
    columns, steps, every = chunks.columns, len(chunks.steps), chunks.every
    types = [tf.as_dtype(column.numpy_dtype) for column in columns]
    whole = chunks.steps.remainder != "keep" or chunks.steps.windows % batch_size == 0

    def fill(epoch: np.int64, step: np.int64) -> list[np.ndarray]:
        alive = weak()
        if alive is None:
            raise RuntimeError("the dataset of reader.load is gone: keep it, and call load outside of tf.data")
        return alive.fill(int(epoch), int(step))

    def epoch_of(epoch: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
        def gather(step: tf.Tensor) -> Batch:
            filled = tf.numpy_function(until_exit(fill), [epoch, step], types)
            return {
                column.name: tf.ensure_shape(values, (None, *column.shape))
                for column, values in zip(columns, filled, strict=True)
            }

        dataset = tf.data.Dataset.range(first, steps, every)  # the first step of each chunk
        dataset = dataset.map(plain(gather), PARALLEL_CHUNKS if alone else None)  # {name: (every * B, length, ...)}
        return dataset.prefetch(1).rebatch(batch_size, drop_remainder=whole)  # {name: (B, length, ...)}, no copy

    return plain(epoch_of)  # type: ignore[no-any-return]
