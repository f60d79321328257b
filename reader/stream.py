"""The whole path from shards to training batches, in one function: `load`."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shards.cache import cache_shards
from shards.dataset import Windows, open_dataset
from shards.errors import OptionError
from shards.features import Feature
from shards.fetch import LARGE_BYTES
from shards.gather import columns_of
from shards.manifest import Manifest
from shards.pieces import Piece, cut_shards
from shards.remote import Place, is_url
from shards.shard_file import check_digests
from shards.text import format_bytes

from .ahead import SingleWindows, WholePieces
from .batches import Batches
from .capacity import HOST, free_bytes, misfit
from .chunks import PARALLEL_CHUNKS, Chunks, epoch_function, steps_per_chunk
from .device import only_gpu, prefetch
from .distribute import distribute
from .epochs import Course, StreamPosition, counted, numbering, starts
from .finish import finishing
from .object_store import remote_files
from .options import LoadOptions, ResidentMode
from .order import MAX_POOL_WINDOWS, FixedOrder, Order, ShuffledOrder
from .resident import devices_of, reside
from .shares import shares
from .steps import Remainder, Steps
from .targets import Batch, Targets

_MOST_WHOLE_BYTES = 3 * 2**28  # of pieces in memory: two pools of 64 take 512 MiB, the chunks under way some 100


def load(
    path: Place,
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
    pool: int = 64,
    verify: bool = False,
    cache_dir: str | Path | None = None,
    cache_bytes: int | None = None,
    resident: ResidentMode = False,
    strategy: tf.distribute.Strategy | None = None,
) -> Any:
    """The windows of one split as a dataset of batches; each iteration over it is one epoch.

    The dataset at `path` may be at a URL: TensorFlow reads gs://, and fsspec all others; both in ranges of some MB.

    An element is a dict {feature: (B, length, ...)}, or (B,) of values of the whole episode; the array of a `.npy`
    episode is called "window". B is batch_size, but for a last smaller batch, see `remainder`. Where windows may be
    padded, the dict also has "valid", int64 (B,): how many steps are real; and "mask", bool (B, length): which ones.
    With provenance=True it has "episode" (its number in episodes.csv) and "start" (first step), int64 (B,).

    What is returned is a `tf.data.Dataset`, or with a strategy a distributed dataset, which `fit` and loops
    take alike. It knows its `steps_per_epoch`, and `seek(epoch, step)` says where its next iteration begins.

    batch_size: the global batch, which all replicas share.
    shuffle: every window once per epoch, in an order that (seed, number of the epoch) alone decide; False gives the
        order of episodes and starts.
    epochs: of one iteration; for ever if None. The next iteration goes on with the epoch after them.
    start_step: the global step to begin with: epoch start_step // steps_per_epoch. Nothing before it is read. `fit`
        looks at a batch beforehand, in an iteration of its own: for `fit`, see `Resume`.
    features: those to deliver, in this order; all of them if None.
    targets: None for the dict; "same" for (x, x); a feature's name for (x, y), y being that feature, such as a label;
        a number h for (x, y), y being the last h steps; or a function of the dict. x and y are bare tensors where there
        is one feature. Where windows may be padded and y goes along time, it is (x, y, weights): 0 for a step that is
        not real, else 1. If y is a value of the episode, x has the mask.
    remainder: what becomes of windows after the last full batch: "keep" them as a smaller batch (the default without a
        strategy), "drop" them, or "repeat" the first windows of the same epoch until it is full (that of any strategy).
    normalize: standardize float features along time, (x - mean) / std, with the statistics of the training split: all
        of them (True, so those in y as well) or those named.
    map_fn: a function from dict to dict, applied to whole batches in parallel, after normalize and before targets.
    pool: so many pieces are shuffled together. A piece is 4 MiB of a shard, whose windows come from all over the split;
        or a whole shard if it is smaller, or if its records hold several windows.
    verify: first compare each shard's SHA-256 with the manifest's, which reads all of the split once; a copy in
        cache_dir that is damaged is made anew.
    cache_dir: a local folder for copies of the shards, made before the first batch, once for all processes, each
        checked by its SHA-256. Copies that nobody reads from make room for those of other datasets.
    cache_bytes: what all copies in cache_dir may take. The first shards of the split are copied, as far as there is
        room; the others are read where they are, every epoch. None: as much as leaves a 20th of the disk free.
    resident: hold the raw steps in the memory of the device, and gather windows there. True: each replica its own part
        of the windows; "copy": each all of them. What is returned is then no `tf.data.Dataset`, but iterated like one.
        If they do not fit, a warning says so, and batches are read from the shards.
    strategy: each of its replicas gets an equal part of each batch on its own device.

    With one GPU and no strategy, batches are prefetched onto the GPU.
    Errors: OptionError; DatasetNotFoundError, SplitNotFoundError, ManifestError, FormatVersionError and ShardError, all
    before the first batch. A shard that later cannot be read, or has changed since, is an error of the iteration: a
    ShardError, or within TensorFlow (`fit`, a strategy, what is made of the dataset) a tf.errors.OpError with its text.
    """
    options = LoadOptions(
        batch_size, shuffle, seed, epochs, start_step, features, targets, remainder, provenance, normalize, map_fn,
        pool, verify, cache_dir, cache_bytes, resident, strategy,
    )  # fmt: skip
    source = open_dataset(path, remote_files(path) if is_url(path) else None)
    manifest, chosen = source.manifest, source[split]
    if cache_dir is not None:
        chosen = _cached(manifest, chosen, options)
    elif verify:
        check_digests(chosen.shards, [shard.sha256 for shard in chosen.split.shards])
    columns = columns_of(manifest, features, provenance)
    finish = finishing(manifest, columns, options)  # mask, normalize, map_fn, targets
    whole = Steps(len(chosen), batch_size, options.rule(len(chosen)))
    pieces = cut_shards(chosen.shards, manifest)
    order = _shuffled(pieces, options) if shuffle else _sorted(chosen, pieces)
    if resident:
        each = shares(chosen, manifest, whole, pieces, order, options)
        problem = misfit([share.places.nbytes(columns) for share in each], devices_of(strategy))
        if problem is not None:
            warnings.warn(f"{problem}. Until then, batches are read from the shards", stacklevel=2)
            options = replace(options, resident=False)
    course = Course(len(whole), epochs, options.identity(manifest, split, whole.remainder))
    if options.resident:
        return reside(chosen, manifest, columns, finish, each, options, course)

    def batches(part: int, parts: int, sharing: int) -> Batches:
        """What part `part` of `parts` of the global batches is: a batch for each of the replicas that share it."""
        steps = replace(whole, part=part, parts=parts)
        place = StreamPosition(*course.at(0, start_step), epochs or 1)
        every = _every(manifest, pieces, columns, steps, options)
        source = _source(chosen, manifest, pieces, columns, every * batch_size, options, parts)
        chunks = Chunks(source, order, columns, steps, every)
        count = None if epochs is None else epochs * len(steps) * sharing

        dataset = starts(place)  # (epoch, step) where this iteration begins
        dataset = dataset.flat_map(numbering(epochs))  # (epoch, its first step)
        epoch = epoch_function(chunks, steps.part_batch // sharing, alone=strategy is None)
        dataset = dataset.flat_map(epoch)  # {name: (B, length, ...)}
        dataset.chunks = chunks  # see epoch_function; whatever is made from this dataset keeps it
        dataset = counted(dataset, count)  # the same
        dataset = dataset.map(finish, tf.data.AUTOTUNE if options.busy else None)  # (x, y)
        dataset = prefetch(dataset.with_options(_options()), only_gpu() if strategy is None else None)  # on the device
        return Batches(dataset, count, place, course)

    return batches(0, 1, 1) if strategy is None else distribute(strategy, batches)


def _cached(manifest: Manifest, chosen: Windows, options: LoadOptions) -> Windows:
    assert options.cache_dir is not None
    name, all_shards = f"{manifest.name}-{chosen.split.name}", chosen.split.shards
    pieces = cache_shards(name, chosen.shards, all_shards, options.cache_dir, options.cache_bytes, options.verify)
    copies = sum(piece.held is not None for piece in pieces)
    if options.verify:
        check_digests(pieces[copies:], [shard.sha256 for shard in all_shards[copies:]])
    if copies < len(pieces):
        warnings.warn(
            f"there is room in {options.cache_dir} for {copies} of the {len(pieces)} shards; the others are read from"
            f" {chosen.folder} every epoch. All of them take {format_bytes(chosen.split.bytes)}: give more cache_bytes,"
            " or another disk",
            stacklevel=3,
        )
    return chosen.reading(pieces)


def _shuffled(pieces: Sequence[Piece], options: LoadOptions) -> Order:
    windows = np.array([piece.windows for piece in pieces])
    if int(windows.max()) * min(options.pool, len(pieces)) > MAX_POOL_WINDOWS:
        raise OptionError(f"a pool of {options.pool} pieces of {windows.max()} windows is too large: choose a smaller")
    return ShuffledOrder(windows, options.seed, options.pool)


def _sorted(chosen: Windows, pieces: Sequence[Piece]) -> Order:
    where = chosen.provenance()
    places = np.lexsort((where["start"], where["episode"]))
    firsts = np.cumsum([0, *(piece.windows for piece in pieces)])
    holding = np.searchsorted(firsts, places, side="right") - 1
    return FixedOrder(holding, places - firsts[holding])


def _every(
    manifest: Manifest, pieces: Sequence[Piece], columns: Sequence[Feature], steps: Steps, options: LoadOptions
) -> int:
    """Steps of a chunk: few enough bytes, and little enough of a pool that all chunks under way lie in two."""
    window_bytes = sum(column.nbytes for column in columns)
    if manifest.window.per_record == 1:
        window_bytes = max(window_bytes, manifest.layout.record_bytes)
    pool = sum(piece.windows for piece in pieces) * min(options.pool, len(pieces)) // len(pieces)
    fitting = max(1, pool // (PARALLEL_CHUNKS * options.batch_size)) if options.shuffle else len(steps)
    return min(steps_per_chunk(steps.part_batch * window_bytes), fitting)


def _source(
    chosen: Windows,
    manifest: Manifest,
    pieces: Sequence[Piece],
    columns: tuple[Feature, ...],
    chunk_windows: int,
    options: LoadOptions,
    parts: int,
) -> WholePieces | SingleWindows:
    """Pieces are read whole if they fit into memory and hold small windows, or such as share records; else windows are.

    What must fit are all; shuffled, two pools, that which is read from and the next, and those of the chunks under way.
    """
    nbytes, most = manifest.layout.record_bytes, max(piece.records for piece in pieces)
    remote = any(piece.remote is not None for piece in pieces)
    in_chunk = -(-chunk_windows * len(pieces) // len(chosen))
    kept = 2 * options.pool + (PARALLEL_CHUNKS + 1) * in_chunk if options.shuffle else len(pieces)
    needed, free = min(kept, len(pieces)) * most * nbytes, free_bytes(HOST)
    fits = (remote or needed <= _MOST_WHOLE_BYTES) and (free is None or 2 * needed <= free)
    if remote and not fits:
        fewer = f"choose a smaller pool than {options.pool}, or" if options.shuffle else "choose"
        cache = "a cache_dir" if options.cache_dir is None else "a cache_dir with room for all shards"
        raise OptionError(
            f"shards at {chosen.folder} are read in pieces, of which {format_bytes(needed)} must be in memory:"
            f" {fewer} {cache}"
        )
    if remote or (fits and parts * chosen.split.bytes < LARGE_BYTES * len(chosen)):  # what is read for a window
        return WholePieces(manifest, columns, pieces, kept)
    return SingleWindows(chosen, columns, pieces, nbytes, kept if options.shuffle and parts == 1 else 0)


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = True
    options.experimental_optimization.apply_default_optimizations = False  # nothing to gain, 25 ms an iteration to lose
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
