"""The whole path from shards to training batches, in one function: `load`."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shards.dataset import Windows, open_dataset
from shards.errors import OptionError
from shards.gather import Gatherer, columns_of
from shards.manifest import Split
from shards.naming import RESERVED

from .chunks import PARALLEL_CHUNKS, Chunks, batches_per_chunk, chunk_function
from .device import only_gpu, prefetch
from .normalize import masking, normalizing, scales_of
from .order import MAX_POOL_WINDOWS, FixedOrder, Order, ShuffledOrder
from .targets import Batch, Targets, check_targets, splitting

_MAPS_AT_RANDOM = 128  # mapped shards kept where the order jumps among all; each holds a file descriptor
_MOST_MAPS = 512  # of the 1024 descriptors that a process often may have


def load(
    path: str | Path,
    split: str = "train",
    *,
    batch_size: int,
    shuffle: bool = True,
    seed: int = 0,
    features: Sequence[str] | None = None,
    targets: Targets = None,
    drop_remainder: bool = False,
    provenance: bool = False,
    normalize: bool | Sequence[str] = False,
    map_fn: Callable[[Batch], Any] | None = None,
    pool: int = 16,
) -> tf.data.Dataset:
    """The windows of one split as a finite `tf.data.Dataset` of batches; each iteration over it is one epoch.

    An element is a dict {feature: (B, length, ...)}, or (B,) of values of the whole episode; the array of a `.npy`
    episode is called "window". B is batch_size but for a last smaller batch, which drop_remainder=True leaves out.
    Where windows may be padded, the dict also has "valid", int64 (B,): how many steps are real; and "mask", bool (B,
    length): which ones. With provenance=True it has "episode" (its number in episodes.csv) and "start" (first step),
    int64 (B,).

    shuffle: every window once per epoch, in an order that (seed, number of the epoch) alone decide; False gives the
        order of episodes and starts.
    features: those to deliver, in this order; all of them if None.
    targets: None for the dict; "same" for (x, x); a feature's name for (x, y), y being that feature, such as a label;
        a number h for (x, y), y being the last h steps; or a function of the dict. x and y are bare tensors where there
        is one feature. Where windows may be padded and y goes along time, it is (x, y, weights): 0 for a step that is
        not real, else 1. If y is a value of the episode, x has the mask.
    normalize: standardize float features along time, (x - mean) / std, with the statistics of the training split: all
        of them (True, so those in y as well) or those named.
    map_fn: a function from dict to dict, applied to whole batches in parallel, after normalize and before targets.
    pool: so many shards are shuffled together. The windows of one shard already come from all over the split.

    With one GPU, batches are prefetched onto it.
    Errors: OptionError; DatasetNotFoundError, SplitNotFoundError, ManifestError, FormatVersionError and ShardError, all
    before the first batch.
    """
    for option, value in (("shuffle", shuffle), ("drop_remainder", drop_remainder), ("provenance", provenance)):
        if not isinstance(value, bool | np.bool_):
            raise OptionError(f"{option} must be True or False, not {value!r}")
    if map_fn is not None and not callable(map_fn):
        raise OptionError(f"map_fn must be a function from dict to dict, not {map_fn!r}")
    source = open_dataset(path)
    chosen, manifest = source[split], source.manifest
    batch_size, seed, pool = _check_options(batch_size, seed, pool, chosen.split)
    columns = columns_of(manifest, features, provenance)
    taken = [column for column in columns if column.name not in RESERVED]
    check_targets(targets, manifest.window, taken, provenance)
    scales = None if normalize is False else scales_of(manifest, taken, normalize)
    count = len(chosen) // batch_size * batch_size if drop_remainder else len(chosen)
    if count == 0:
        raise OptionError(f"drop_remainder leaves nothing: split {split} has {len(chosen)} windows, less than a batch")

    order = _shuffled(chosen.split, seed, pool) if shuffle else _sorted(chosen)
    maps = min(2 * pool, _MOST_MAPS) if shuffle else _MAPS_AT_RANDOM
    gatherer = Gatherer(source.folder, manifest, chosen.split, columns, maps)
    size = batch_size * batches_per_chunk(batch_size * sum(column.nbytes for column in columns))
    chunks = Chunks(gatherer, order, columns, size, count)

    dataset = _epochs()  # number of this epoch
    dataset = dataset.flat_map(_numbering(len(chunks)))  # (epoch, chunk)
    dataset = dataset.map(chunk_function(chunks, columns), PARALLEL_CHUNKS)  # {name: (batches * B, length, ...)}
    dataset.chunks = chunks  # see chunk_function; whatever is made from this dataset keeps it
    dataset = dataset.prefetch(1)
    dataset = dataset.rebatch(batch_size, drop_remainder=count % batch_size == 0)  # {name: (B, length, ...)}, no copy
    if manifest.window.tail == "pad":
        dataset = dataset.map(masking(manifest.window.length))  # with "mask": (B, length)
    if scales is not None:
        dataset = dataset.map(normalizing(scales), num_parallel_calls=tf.data.AUTOTUNE)
    if map_fn is not None:
        dataset = dataset.map(map_fn, num_parallel_calls=tf.data.AUTOTUNE)  # {name: anything}
    if targets is not None:
        dataset = dataset.map(targets if callable(targets) else splitting(targets, taken))  # (x, y)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(-(-count // batch_size)))
    return prefetch(dataset.with_options(_options()), only_gpu())


def _check_options(batch_size: int, seed: int, pool: int, split: Split) -> tuple[int, int, int]:
    for option, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("pool", pool, 1)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value < 2**63:
            raise OptionError(f"{option} must be a whole number of {least} or more, not {value!r}")
    most = max(shard.windows for shard in split.shards)
    if most * min(pool, len(split.shards)) > MAX_POOL_WINDOWS:
        raise OptionError(f"a pool of {pool} shards of {most} windows is too large: choose a smaller pool")
    return int(batch_size), int(seed), int(pool)


def _shuffled(split: Split, seed: int, pool: int) -> Order:
    return ShuffledOrder(np.array([shard.windows for shard in split.shards]), seed, pool)


def _sorted(windows: Windows) -> Order:
    where = windows.provenance()
    places = np.lexsort((where["start"], where["episode"]))
    firsts = windows.split.firsts
    shards = np.searchsorted(firsts, places, side="right") - 1
    return FixedOrder(shards, places - firsts[shards])


# AutoGraph has nothing to convert in our functions.
_plain = tf.autograph.experimental.do_not_convert


def _epochs() -> tf.data.Dataset:
    """One element, the number of the epoch: 0 the first time that the dataset is iterated, then 1, and so on."""
    numbers = itertools.count()

    def number(_: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(lambda: np.int64(next(numbers)), [], tf.int64), ())

    return tf.data.Dataset.range(1).map(_plain(number))


def _numbering(chunks: int) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """The stage epoch -> (epoch, 0), (epoch, 1), ... (epoch, chunks - 1)."""

    def numbered(epoch: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(chunks).map(_plain(lambda chunk: (epoch, chunk)))

    return _plain(numbered)  # type: ignore[no-any-return]


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
