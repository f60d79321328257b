"""Windows read from shards one by one, or with their neighbours, into arrays: no more than is wanted, or close by."""

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .features import Feature
from .gather import Cut, Index
from .manifest import Manifest
from .pieces import Piece
from .remote import side_by_side
from .shard_file import open_shard
from .windows import Int64s

#: What is so large is read straight into its place; smaller things by way of a cache, with what lies near them, unless
#: they are of a medium size and lie alone.
LARGE_BYTES = 2**14
_MEDIUM_BYTES = 2**11
_GAP_BYTES = 2**13  # between two ranges: to read so much takes about as long as one call
_REMOTE_GAP_BYTES = 2**18  # likewise, of a request that takes milliseconds
_BLOCK_BYTES = 2**20  # read by way of the cache at a time
_REMOTE_BYTES = 2**23, 2**26  # of a request, and of those under way
_SECTION = 2**18  # windows looked for at a time, of several numbers each
_MOST_FILES = 128  # kept open; a process often may have 1024


class Fetcher:
    """Reads windows of a split, given by their numbers in it; `shards` are its shards as whole pieces.

    Safe to call from several threads.
    """

    def __init__(self, manifest: Manifest, shards: Sequence[Piece]) -> None:
        reads, spec = _Reads(shards), manifest.window
        self._reads, self._record_bytes = reads, manifest.layout.record_bytes
        self._firsts = np.cumsum([0, *(shard.windows for shard in shards)])
        self._grouped = lru_cache(
            lambda columns: _grouped([Cut(manifest, column) for column in columns], spec.per_record)
        )
        self._shared = spec.per_record > 1
        self._index = lru_cache(_MOST_FILES)(lambda i: _read_index(reads, manifest, i, shards[i]))

    def fetch(self, numbers: Int64s, columns: tuple[Feature, ...], outs: Sequence[np.ndarray]) -> None:
        """outs[c][j] = column c of window numbers[j]; outs[c] is a contiguous (n, *shape of c). Errors: ShardError."""
        order = np.argsort(numbers, kind="stable")  # as they lie on disk
        for at in range(0, len(order), _SECTION):
            places = order[at : at + _SECTION]
            rows = numbers[places]
            shards = np.searchsorted(self._firsts, rows, side="right") - 1
            rows -= self._firsts[shards]
            first_steps = self._find(shards, rows) if self._shared else None
            for group in self._grouped(columns):
                _fetch(self._reads, group, outs, shards, rows * self._record_bytes, first_steps, places)

    def _find(self, shards: Int64s, rows: Int64s) -> Int64s:
        """The first steps of windows in their records; rows become the numbers of these."""
        first_steps = np.empty_like(rows)
        for begin, end in _equal(shards):
            rows[begin:end], first_steps[begin:end] = self._index(int(shards[begin])).find(rows[begin:end])
        return first_steps


_Group = list[tuple[int, Cut]]  # columns, by their number, that are read together


def _grouped(cuts: Sequence[Cut], per_record: int) -> list[_Group]:
    """Those read straight into their place one by one, and those that lie near each other in a record together."""
    groups: list[_Group] = []
    end = None
    for number, cut in sorted(enumerate(cuts), key=lambda pair: pair[1].offset):
        if cut.packed and cut.nbytes >= LARGE_BYTES:
            groups.append([(number, cut)])
            end = None
        elif end is not None and cut.offset - end <= _GAP_BYTES and per_record == 1:
            groups[-1].append((number, cut))
            end = cut.offset + cut.nbytes
        else:
            groups.append([(number, cut)])
            end = cut.offset + cut.nbytes
    return groups


def _fetch(
    reads: "_Reads",
    group: _Group,
    outs: Sequence[np.ndarray],
    shards: Int64s,
    records: Int64s,
    first_steps: Int64s | None,
    places: Int64s,
) -> None:
    """outs[c][places[j]] = column c of window j, for each c of a group; windows are in the order of their places."""
    (number, first), (_, last) = group[0], group[-1]
    begins = first.begins(records, first_steps)
    alone = first is last and first.packed and first.nbytes >= _MEDIUM_BYTES and not reads.remote
    if alone and (first.nbytes >= LARGE_BYTES or 2 * np.count_nonzero(_apart(begins, first.nbytes)) >= len(begins) - 1):
        memory = outs[number].reshape(-1).view(np.uint8).data
        reads.fill(memory, shards, begins, places * first.nbytes, np.full_like(places, first.nbytes))
        return
    nbytes = last.offset + last.nbytes - first.offset
    for part, block, at in reads.blocks(shards, begins, nbytes):
        steps = None if first_steps is None else first_steps[part]
        for c, cut in group:
            cut.copy(block, at + (cut.offset - first.offset), steps, places[part], outs[c])


def _read_index(reads: "_Reads", manifest: Manifest, i: int, shard: Piece) -> Index:
    """Which windows the records of shard i hold."""
    numbers = np.arange(shard.records)
    integers = [np.empty_like(numbers) for _ in Index.columns]
    group = list(enumerate(Cut(manifest, column) for column in Index.columns))
    _fetch(reads, group, integers, np.full_like(numbers, i), numbers * manifest.layout.record_bytes, None, numbers)
    return Index(shard, manifest.window, *integers)


class _Reads:
    """Reads ranges of bytes of shards, given by their numbers, and in the order of their places."""

    def __init__(self, shards: Sequence[Piece]) -> None:
        self._file = lru_cache(_MOST_FILES)(lambda i: open_shard(shards[i]))
        self.remote = any(shard.remote is not None for shard in shards)
        self._gap = _REMOTE_GAP_BYTES if self.remote else _GAP_BYTES
        self._most_in_one, self._most = _REMOTE_BYTES if self.remote else (_BLOCK_BYTES, _BLOCK_BYTES)
        self._local = threading.local()

    def fill(self, memory: memoryview, shards: Int64s, begins: Int64s, places: Int64s, nbytes: Int64s) -> None:
        """The nbytes[j] bytes of `memory` from places[j] on become those of a shard from begins[j] on."""

        def read(first: int, end: int) -> None:
            file, here = self._file(int(shards[first])), slice(first, end)
            ranges = (part[here].tolist() for part in (places, begins, nbytes))
            file.read(memory, zip(*ranges, strict=True))
            file.check()

        if self.remote:  # each range is a request
            side_by_side(lambda i: read(i, i + 1), range(len(shards)))
            return
        for first, end in _equal(shards):
            read(first, end)

    def blocks(self, shards: Int64s, begins: Int64s, nbytes: int) -> Iterator[tuple[slice, NDArray[np.uint8], Int64s]]:
        """Read the `nbytes` bytes from begins[j] on, all j, with what lies between those that are close together.

        Yields (some of them, memory that holds them until the next, where in it each begins).
        """
        apart = _apart(begins, nbytes, self._gap) | (shards[1:] != shards[:-1])
        apart |= begins[1:] // self._most_in_one != begins[:-1] // self._most_in_one
        firsts = np.concatenate([[0], np.flatnonzero(apart) + 1])  # of each range that is read in one go
        ends = np.append(firsts[1:], len(begins))
        sizes = begins[ends - 1] + nbytes - begins[firsts]
        for first, end in runs(sizes, self._most):
            here = slice(first, end)
            stops = np.cumsum(sizes[here])
            starts = stops - sizes[here]
            memory = self._memory(int(stops[-1]))
            self.fill(memory.data, shards[firsts[here]], begins[firsts[here]], starts, sizes[here])
            part = slice(int(firsts[first]), int(ends[end - 1]))
            yield part, memory, begins[part] + np.repeat(starts - begins[firsts[here]], ends[here] - firsts[here])

    def _memory(self, nbytes: int) -> NDArray[np.uint8]:
        memory: NDArray[np.uint8] | None = getattr(self._local, "memory", None)
        if memory is None or len(memory) < nbytes:
            memory = self._local.memory = np.empty(max(nbytes, _BLOCK_BYTES), np.uint8)
        return memory


def _apart(begins: Int64s, nbytes: int, gap: int = _GAP_BYTES) -> NDArray[np.bool_]:
    """Whether two ranges next to one another are so far apart that they are not read in one go."""
    return begins[1:] - begins[:-1] > nbytes + gap


def _equal(numbers: Int64s) -> Iterator[tuple[int, int]]:
    """The ranges [begin, end) of equal numbers next to one another."""
    return pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)])


def runs(counts: Int64s, most: int) -> Iterator[tuple[int, int]]:
    """Ranges [begin, end) that cover all counts, whose sums are `most` at most, or which are a single one.

    >>> list(runs(np.array([2, 2, 3, 9, 1]), 5))
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    sums = np.cumsum(counts)
    begin = 0
    while begin < len(sums):
        before = int(sums[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(sums, before + most, side="right")))
        yield begin, end
        begin = end
