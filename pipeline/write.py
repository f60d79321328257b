"""One shard, from the byte ranges of its spans to a finished file. Plain NumPy; Beam only calls `write_shard`."""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from shards.errors import EpisodeError
from shards.features import DTYPES, Feature
from shards.keyed_hash import keyed_hash
from shards.memory import Buffers
from shards.record import Field, RecordLayout, record_layout

from .files import join, open_file, write_file
from .npy import NpyError, NpyHeader, parse_header

# A Fortran-order range is read in one go where that reads little in vain, and column by column elsewhere.
_ONE_READ_BYTES = 2**26
_GAP_BYTES = 2**17


class SourceEpisode(NamedTuple):
    """Where an episode's data lie: `path` below the input root, `steps` along time from byte `offset` of the file."""

    path: str
    steps: int
    offset: int
    big_endian: bool
    fortran_order: bool


class Span(NamedTuple):
    """The windows [first, first + size) of the episode with this number."""

    episode: int
    first: int
    size: int


class ShardTask(NamedTuple):
    """One shard to write: its file's name, the key of its order, its spans and the episodes that these name."""

    file: str
    key: tuple[int, ...]
    spans: tuple[Span, ...]
    episodes: dict[int, SourceEpisode]

    def to_json(self) -> bytes:
        """One line of JSON."""
        return json.dumps([self.file, self.key, self.spans, list(self.episodes.items())]).encode() + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> "ShardTask":
        """The inverse of `to_json`."""
        file, key, spans, episodes = json.loads(line)
        return cls(
            file, tuple(key), tuple(Span(*span) for span in spans), {i: SourceEpisode(*row) for i, row in episodes}
        )


class ShardDone(NamedTuple):
    """What came of a task: the finished file, or why there is none (`error`, empty if all went well)."""

    file: str
    records: int
    bytes: int
    sha256: str
    error: str


@dataclass(frozen=True)
class Recipe:
    """What all shards of a job have in common: `length` and `shift` in steps, `shard_bytes` of the largest."""

    root: str
    staging: str
    feature: Feature
    length: int
    shift: int
    shard_bytes: int

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of each record."""
        return record_layout([self.feature])


def write_shard(recipe: Recipe, task: ShardTask) -> ShardDone:
    """Write one shard into the staging folder; trouble with files is returned, not raised, so that all of it is told.

    Memory: the shard, and one span of the source.
    """
    try:
        records = make_records(recipe, task)
        data = records.data.cast("B")
        with ThreadPoolExecutor(1) as pool:  # the disk is waited for while the processor hashes
            digest = pool.submit(lambda: sha256(data).hexdigest())
            write_file(join(recipe.staging, task.file), data)
    except (EpisodeError, OSError) as error:
        return ShardDone(
            task.file, 0, 0, "", str(error) if isinstance(error, EpisodeError) else f"{task.file}: {error}"
        )
    return ShardDone(task.file, len(records), len(data), digest.result(), "")


def make_records(recipe: Recipe, task: ShardTask) -> NDArray[np.uint8]:
    """The shard as an (n, record_bytes) uint8 array: all windows of its spans, in an order keyed by `task.key`."""
    layout = recipe.layout
    counts = [span.size for span in task.spans]
    rows = _places(sum(counts), task.key)  # the row of each window, counted through the spans
    begins = dict(zip(task.spans, np.cumsum([0, *counts]).tolist(), strict=False))
    records = _memory(recipe.shard_bytes).array((len(rows), layout.record_bytes), np.dtype(np.uint8))
    layout.write_constants(records)
    (field,) = layout.data_fields
    episodes = np.empty(len(rows), np.int64)
    starts = np.empty(len(rows), np.int64)
    for number, spans in groupby(sorted(task.spans), key=itemgetter(0)):  # an episode is opened once
        episode = task.episodes[number]
        for span, steps in read_spans(recipe, episode, spans):
            chosen = rows[begins[span] : begins[span] + span.size]
            put_windows(records, field, chosen, steps, recipe.length, recipe.shift)
            episodes[chosen] = number
            starts[chosen] = (span.first + np.arange(span.size)) * recipe.shift
    layout.write_integers(records, "episode", episodes)
    layout.write_integers(records, "start", starts)
    layout.write_checksums(records)
    return records


@lru_cache(maxsize=1)
def _memory(shard_bytes: int) -> Buffers:
    return Buffers(shard_bytes, idle=1)  # a process writes one shard after another


def _places(count: int, key: tuple[int, ...]) -> NDArray[np.int64]:
    """A permutation of range(count) that the key alone decides."""
    return np.argsort(keyed_hash(np.arange(count), *key), kind="stable")


def put_windows(
    records: NDArray[np.uint8], field: Field, rows: NDArray[np.int64], steps: np.ndarray, length: int, shift: int
) -> None:
    """Copy every window of `steps`, an array (n, ...), into a field of the given rows, swapping bytes if need be."""
    values = field.values(records).reshape(len(records), length, -1)  # views all: (records, length, values a step)
    flat = steps.reshape(len(steps), -1)
    step, value = flat.strides
    windows = as_strided(flat, (len(rows), length, flat.shape[1]), (shift * step, step, value), writeable=False)
    values[rows] = windows


def read_spans(recipe: Recipe, episode: SourceEpisode, spans: Iterable[Span]) -> Iterator[tuple[Span, np.ndarray]]:
    """Each span with the steps that its windows cover, an array (steps, ...) in the file's own byte order.

    Errors: EpisodeError, which names the file, when it can no longer be read as it was planned.
    """
    path = recipe.root + episode.path
    shape = (episode.steps, *recipe.feature.shape[1:])
    planned = NpyHeader(recipe.feature.dtype, episode.big_endian, episode.fortran_order, shape, episode.offset)
    try:
        with open_file(path) as opened:
            if parse_header(opened.read(episode.offset)) != planned:
                raise NpyError
            for span in spans:
                first = span.first * recipe.shift
                yield span, _read_steps(opened, recipe, episode, first, (span.size - 1) * recipe.shift + recipe.length)
    except NpyError:
        raise EpisodeError(f"{path} is not the file that was planned with: it changed while the build ran") from None
    except EOFError:
        raise EpisodeError(f"{path} ended before its {episode.steps} steps: it changed while the build ran") from None
    except OSError as error:
        raise EpisodeError(f"{path} could not be read while the build ran: {error.strerror or error}") from error


def _read_steps(opened: BinaryIO, recipe: Recipe, episode: SourceEpisode, first: int, count: int) -> np.ndarray:
    """The steps [first, first + count) of an open episode."""
    step_shape = recipe.feature.shape[1:]
    dtype = DTYPES[recipe.feature.dtype]
    if episode.big_endian:
        dtype = dtype.newbyteorder(">")
    columns = prod(step_shape)
    if not episode.fortran_order:
        steps = _read(opened, episode.offset + first * columns * dtype.itemsize, count * columns, dtype)
        return steps.reshape(count, *step_shape)
    # In Fortran order time runs fastest: each value of a step has its own column of episode.steps values.
    apart = (columns - 1) * episode.steps + count
    begin = episode.offset + first * dtype.itemsize
    if episode.steps - count <= _GAP_BYTES // dtype.itemsize and apart * dtype.itemsize <= _ONE_READ_BYTES:
        whole = _read(opened, begin, apart, dtype)
        table = as_strided(whole, (columns, count), (episode.steps * dtype.itemsize, dtype.itemsize))
    else:
        table = np.empty((columns, count), dtype)
        for column in range(columns):
            table[column] = _read(opened, begin + column * episode.steps * dtype.itemsize, count, dtype)
    return np.ascontiguousarray(table.reshape(*reversed(step_shape), count).T)


def _read(opened: BinaryIO, begin: int, count: int, dtype: "np.dtype[Any]") -> np.ndarray:
    values = np.empty(count, dtype)
    view = values.view(np.uint8).data
    opened.seek(begin)
    while len(view):
        got = opened.readinto(view)  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        view = view[got:]
    return values
