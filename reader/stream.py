"""The whole path from shards to training batches, in one function: `load`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shards.dataset import Windows, open_dataset
from shards.errors import OptionError
from shards.gather import Gatherer, columns_of
from shards.manifest import Manifest
from shards.naming import RESERVED
from shards.pieces import Piece, cut_shards, whole_shards

from .ahead import Ahead, mapping, streaming
from .batches import Batches
from .chunks import Chunks, epoch_function, steps_per_chunk
from .device import only_gpu, prefetch
from .distribute import distribute, replicas_of
from .epochs import Place, counted, numbering, starts
from .normalize import masking, normalizing, scales_of
from .order import MAX_POOL_WINDOWS, FixedOrder, Order, ShuffledOrder
from .steps import REMAINDERS, Remainder, Steps
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
    epochs: int | None = 1,
    start_step: int = 0,
    features: Sequence[str] | None = None,
    targets: Targets = None,
    remainder: Remainder | None = None,
    provenance: bool = False,
    normalize: bool | Sequence[str] = False,
    map_fn: Callable[[Batch], Any] | None = None,
    pool: int = 16,
    stream: bool = False,
    strategy: tf.distribute.Strategy | None = None,
) -> Any:
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
    _check_options(batch_size, seed, pool, epochs, start_step, remainder)
    for option, value in (("shuffle", shuffle), ("provenance", provenance), ("stream", stream)):
        if not isinstance(value, bool | np.bool_):
            raise OptionError(f"{option} must be True or False, not {value!r}")
    if map_fn is not None and not callable(map_fn):
        raise OptionError(f"map_fn must be a function from dict to dict, not {map_fn!r}")
    source = open_dataset(path)
    chosen, manifest = source[split], source.manifest
    columns = columns_of(manifest, features, provenance)
    taken = [column for column in columns if column.name not in RESERVED]
    check_targets(targets, manifest.window, taken, provenance)
    scales = None if normalize is False else scales_of(manifest, taken, normalize)
    replicas = replicas_of(strategy, batch_size)
    rule = _remainder_rule(remainder, replicas, len(chosen), batch_size)
    record_bytes, kept = manifest.layout.record_bytes, min(2 * pool, _MOST_MAPS) + 8 if shuffle else _MAPS_AT_RANDOM
    pieces, order = _shuffled(chosen, manifest, seed, pool) if shuffle else _sorted(chosen, stream)

    whole = Steps(len(chosen), batch_size, rule)
    count = None if epochs is None else epochs * len(whole)

    def batches(part: int, parts: int, sharing: int) -> Batches:
        """What part `part` of `parts` of the global batches is, a batch for each of the replicas that share it."""
        steps = replace(whole, part=part, parts=parts)
        place = Place(*divmod(start_step, len(steps)), epochs or 1)
        read = streaming(record_bytes, pieces) if stream else mapping(record_bytes)
        records = Ahead(manifest, pieces, read, kept)
        every = steps_per_chunk(steps.part_batch * sum(column.nbytes for column in columns))
        chunks = Chunks(records, Gatherer(manifest, columns, records), order, columns, steps, every)
        total = None if count is None else count * sharing

        dataset = starts(place)  # (epoch, step) where this iteration begins
        dataset = dataset.flat_map(numbering(epochs))  # (epoch, its first step)
        dataset = dataset.flat_map(epoch_function(chunks, columns, steps.part_batch // sharing))  # {name: (B, ...)}
        dataset.chunks = chunks  # see epoch_function; whatever is made from this dataset keeps it
        if manifest.window.tail == "pad":
            dataset = dataset.map(masking(manifest.window.length))  # with "mask": (B, length)
        if scales is not None:
            dataset = dataset.map(normalizing(scales), num_parallel_calls=tf.data.AUTOTUNE)
        if map_fn is not None:
            dataset = dataset.map(map_fn, num_parallel_calls=tf.data.AUTOTUNE)  # {name: anything}
        if targets is not None:
            dataset = dataset.map(targets if callable(targets) else splitting(targets, taken))  # (x, y)
        dataset = counted(dataset, total).with_options(_options())
        dataset = prefetch(dataset, only_gpu() if strategy is None else None)
        return Batches(dataset, total, len(steps), place)

    return batches(0, 1, 1) if strategy is None else distribute(strategy, batches, count)


def _check_options(
    batch_size: int, seed: int, pool: int, epochs: int | None, start_step: int, remainder: Remainder | None
) -> None:
    for option, value, least in (
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
        ("pool", pool, 1),
        ("epochs", 1 if epochs is None else epochs, 1),
        ("start_step", start_step, 0),
    ):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value < 2**63:
            raise OptionError(f"{option} must be a whole number of {least} or more, not {value!r}")
    if remainder is not None and remainder not in REMAINDERS:
        raise OptionError(f"remainder must be one of {', '.join(REMAINDERS)}, not {remainder!r}")


def _remainder_rule(remainder: Remainder | None, replicas: int, windows: int, batch_size: int) -> Remainder:
    """What becomes of windows that are no full global batch."""
    if remainder == "drop" and windows < batch_size:
        raise OptionError(f'remainder="drop" leaves nothing: there are {windows} windows, less than a batch')
    if remainder == "keep" and replicas > 1 and windows % batch_size:
        raise OptionError(
            f'remainder="keep" gives {replicas} replicas unequal parts of the last {windows % batch_size} windows:'
            ' choose "drop" or "repeat"'
        )
    return remainder or ("keep" if replicas == 1 else "repeat")


def _shuffled(chosen: Windows, manifest: Manifest, seed: int, pool: int) -> tuple[list[Piece], Order]:
    pieces = cut_shards(chosen.folder, chosen.split.shards, manifest)
    windows = np.array([piece.windows for piece in pieces])
    if int(windows.max()) * min(pool, len(pieces)) > MAX_POOL_WINDOWS:
        raise OptionError(f"a pool of {pool} pieces of {windows.max()} windows is too large: choose a smaller pool")
    return pieces, ShuffledOrder(windows, int(seed), int(pool))


def _sorted(chosen: Windows, stream: bool) -> tuple[list[Piece], Order]:
    if stream:
        raise OptionError("shuffle=False jumps among all shards, so they cannot be streamed: map them, or shuffle")
    where = chosen.provenance()
    places = np.lexsort((where["start"], where["episode"]))
    firsts = chosen.split.firsts
    shards = np.searchsorted(firsts, places, side="right") - 1
    return whole_shards(chosen.folder, chosen.split.shards), FixedOrder(shards, places - firsts[shards])


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
