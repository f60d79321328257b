"""The whole path from shards to training batches, in one function: `load`."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shards.dataset import check_shards, open_dataset
from shards.errors import OptionError
from shards.manifest import Split, load_manifest
from shards.record import Field

from .device import prefetch
from .gather import Gatherer
from .memory import Buffers
from .order import MAX_POOL_WINDOWS, FixedOrder, Order, ShuffledOrder
from .targets import Batch, Targets, apply_targets, check_targets

_PARALLEL_CHUNKS = 2  # gathers in flight: one for the stream, one ahead of it
_CHUNK_BYTES = 2**24  # of windows gathered in one call: small against a pool, large against the cost of a call
_CHUNK_BATCHES = 128


def load(
    path: str | Path,
    split: str = "train",
    *,
    batch_size: int,
    shuffle: bool = True,
    seed: int = 0,
    targets: Targets = None,
    drop_remainder: bool = False,
    provenance: bool = False,
    map_fn: Callable[[Batch], Any] | None = None,
    pool: int = 16,
) -> tf.data.Dataset:
    """The windows of one split as a finite `tf.data.Dataset` of batches; each iteration over it is one epoch.

    An element is a dict {feature: (B, length, ...)} (the array of a `.npy` episode is called "window"), where B is
    batch_size but for a last smaller batch, which drop_remainder=True leaves out. With provenance=True the dict also
    has "episode" (row in episodes.csv) and "start" (first step), int64 of shape (B,).

    shuffle: every window once per epoch, in an order that (seed, number of the epoch) alone decide; False gives the
        order of episodes and starts.
    targets: None for the dict; "same" for (x, x); a number h for (x, y), y being the last h steps; or a function of the
        dict. x and y are bare tensors where there is one feature.
    map_fn: a function from dict to dict, applied to whole batches in parallel, before targets.
    pool: so many shards are shuffled together. The windows of one shard already come from all over the split.

    With one GPU, batches are prefetched onto it.
    Errors: OptionError; DatasetNotFoundError, SplitNotFoundError, ManifestError, FormatVersionError and ShardError, all
    before the first batch.
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    chosen = manifest.split(split)
    check_shards(folder, chosen)
    _check_options(batch_size, seed, pool, chosen)
    check_targets(targets, manifest, provenance)
    fields = manifest.layout.fields if provenance else manifest.layout.data_fields
    order = _order(folder, chosen, shuffle, seed, pool)

    windows = len(order) // batch_size * batch_size if drop_remainder else len(order)
    if windows == 0:
        raise OptionError(f"drop_remainder leaves nothing: split {split} has {len(order)} windows, less than a batch")
    per_chunk = batch_size * _batches_per_chunk(batch_size * sum(field.feature.nbytes for field in fields))
    chunks = -(-windows // per_chunk)
    gather = _gathering(Gatherer(folder, chosen, manifest.layout, fields), order, fields, per_chunk, windows)

    dataset = _epochs()  # number of this epoch
    dataset = dataset.flat_map(lambda epoch: _numbered(epoch, chunks))  # (epoch, chunk)
    dataset = dataset.map(gather, num_parallel_calls=_PARALLEL_CHUNKS)  # {name: (batches * B, length, ...)}
    dataset = dataset.prefetch(1)
    dataset = dataset.rebatch(batch_size)  # {name: (B, length, ...)}, slices of the chunk
    dataset = dataset.map(lambda batch: _with_static_batch(batch, batch_size, windows))
    if map_fn is not None:
        dataset = dataset.map(map_fn, num_parallel_calls=tf.data.AUTOTUNE)
    if targets is not None:
        dataset = dataset.map(lambda batch: apply_targets(batch, targets))  # (x, y)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(-(-windows // batch_size)))
    return prefetch(dataset.with_options(_options()))


def _check_options(batch_size: int, seed: int, pool: int, split: Split) -> None:
    for option, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("pool", pool, 1)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not least <= value < 2**63:
            raise OptionError(f"{option} must be a whole number of {least} or more, not {value!r}")
    most = max(shard.windows for shard in split.shards)
    if most * min(pool, len(split.shards)) > MAX_POOL_WINDOWS:
        raise OptionError(f"a pool of {pool} shards of {most} windows is too large: choose a smaller pool")


def _order(folder: Path, split: Split, shuffle: bool, seed: int, pool: int) -> Order:
    if shuffle:
        return ShuffledOrder(np.array([shard.windows for shard in split.shards]), seed, pool)
    where = open_dataset(folder)[split.name].provenance()
    places = np.lexsort((where["start"], where["episode"]))
    firsts = np.cumsum([0] + [shard.windows for shard in split.shards])
    shards = np.searchsorted(firsts, places, side="right") - 1
    return FixedOrder(shards, places - firsts[shards])


def _epochs() -> tf.data.Dataset:
    """One element, the number of the epoch: 0 the first time that the dataset is iterated, then 1, and so on."""
    numbers = count()
    one = tf.data.Dataset.range(1)
    return one.map(lambda _: tf.ensure_shape(tf.numpy_function(lambda: np.int64(next(numbers)), [], tf.int64), ()))


def _numbered(epoch: tf.Tensor, chunks: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(chunks).map(lambda chunk: (epoch, chunk))


def _batches_per_chunk(batch_bytes: int) -> int:
    return max(1, min(_CHUNK_BYTES // batch_bytes, _CHUNK_BATCHES))


def _gathering(
    gatherer: Gatherer, order: Order, fields: tuple[Field, ...], per_chunk: int, windows: int
) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
    """The stage (epoch, chunk) -> {name: (n, length, ...)}: `per_chunk` windows, and at the end what is left."""
    idle = _PARALLEL_CHUNKS + 4  # being filled, prefetched, cut into batches
    buffers = [Buffers(per_chunk * field.nbytes, idle) for field in fields]

    def fill(epoch: np.int64, chunk: np.int64) -> list[np.ndarray]:
        begin = int(chunk) * per_chunk
        size = min(per_chunk, windows - begin)
        outs = [
            memory.array((size, field.nbytes), np.dtype(np.uint8))
            for memory, field in zip(buffers, fields, strict=True)
        ]
        at = 0
        for shards, rows in order.parts(int(epoch), begin, begin + size):
            gatherer.gather(shards, rows, [out[at : at + len(rows)] for out in outs])
            at += len(rows)
        return [field.of(out) for field, out in zip(fields, outs, strict=True)]

    def gather(epoch: tf.Tensor, chunk: tf.Tensor) -> Batch:
        filled = tf.numpy_function(fill, [epoch, chunk], [tf.as_dtype(field.feature.numpy_dtype) for field in fields])
        return {
            field.feature.name: tf.ensure_shape(values, (None, *field.feature.shape))
            for field, values in zip(fields, filled, strict=True)
        }

    return gather


def _with_static_batch(batch: Batch, batch_size: int, windows: int) -> Batch:
    """The same batch, with its size known before it comes where all batches are full."""
    if windows % batch_size:
        return batch
    return {name: tf.ensure_shape(values, (batch_size, *values.shape[1:])) for name, values in batch.items()}


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
