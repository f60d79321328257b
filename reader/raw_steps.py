"""The steps of chosen windows, each stored once however many windows have it: what a replica holds in its memory.

Of the windows of an episode, those whose starts are alike modulo `stride` have steps in common; others have none. So
steps are stored `stride` apart, and the `length` steps of each window are consecutive rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np

from shards.dataset import Windows
from shards.features import Feature
from shards.fetch import runs
from shards.gather import Gatherer, Records
from shards.manifest import Manifest
from shards.memory import Buffers
from shards.pieces import cut_shards
from shards.shard_file import read_piece
from shards.windows import Int64s, WindowSpec

_MOST_TWICE = 1 / 8  # of the steps may be stored again so that windows are whole blocks, which are gathered faster
_COPIED_BYTES = 2**22  # at a time: small against a replica's memory, large against what a call of NumPy costs


@dataclass(frozen=True)
class Places:
    """Where the steps of W windows go: window w has the rows [first[w], first[w] + length) of `steps` rows.

    Of these, the last fresh[w] are in no window that lies before it. All of this and `length` are multiples of `block`.
    """

    first: Int64s
    fresh: Int64s
    steps: int
    block: int

    def nbytes(self, columns: Sequence[Feature]) -> int:
        """What `read_raw_steps` allocates."""
        sizes = (self.steps * (c.nbytes // c.shape[0]) if c.shape else len(self.first) * c.nbytes for c in columns)
        return sum(sizes) + self.first.nbytes


def place(episode: Int64s, start: Int64s, window: WindowSpec) -> Places:
    """Where the steps of windows go, of which (W,) arrays tell the episode and the first step; no two are the same.

    Rows are as many as there are different steps in the windows; or up to an eighth more, where windows of
    `tail="align"` that lie askew to the others are stored by themselves.

    >>> place(np.array([3, 3, 3, 4]), np.array([4, 2, 0, 6]), WindowSpec(4, shift=2)).first.tolist()
    [4, 2, 0, 8]
    """
    lane, step = start % window.stride, start // window.stride
    order = np.lexsort((step, lane, episode))
    apart = np.diff(step[order], prepend=0)
    alone = np.ones(len(order), bool)  # none before it has steps of it
    alone[1:] = (np.diff(episode[order]) != 0) | (np.diff(lane[order]) != 0)
    fresh = np.where(alone, window.length, np.minimum(apart, window.length))
    lag = window.shift // gcd(window.shift, window.stride)  # rows between two windows of a lane
    block = gcd(window.length, min(lag, window.length))
    aligned = np.where(apart % block == 0, fresh, window.length)
    if aligned.sum() <= (1 + _MOST_TWICE) * fresh.sum():
        fresh = aligned
    else:
        block = 1
    ends = np.cumsum(fresh)
    places = Places(np.empty_like(ends), np.empty_like(ends), int(ends[-1]) if len(ends) else 0, block)
    places.first[order], places.fresh[order] = ends - window.length, fresh
    return places


def part_of(windows: Int64s, part: int, parts: int, repeat: bool = False) -> Int64s:
    """The part of the numbers `windows`, sorted by (episode, start), that one of `parts` replicas holds; ascending.

    Parts are neighbours in that order, so that steps that windows share are stored in one part, but at its ends. All
    are equal in size: what is left over is in no part, or, with `repeat`, some windows are in two.

    >>> [part_of(np.arange(7), part, 3).tolist() for part in range(3)]
    [[0, 1], [2, 3], [4, 5]]
    >>> [part_of(np.arange(7), part, 3, repeat=True).tolist() for part in range(3)]
    [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    """
    count = len(windows)
    size = -(-count // parts) if repeat else count // parts
    begin = min(part * count // parts, count - size)
    return np.sort(windows[begin : begin + size])


@dataclass(frozen=True)
class RawSteps:
    """What a replica holds of W windows.

    steps: {feature along time: (T, *shape of a step)}, contiguous. Window w has the rows [first[w], first[w] + length).
    values: {what is one number a window: (W,)}.
    first: int64 (W,), multiples of `block`, as `length` is.
    """

    steps: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    first: Int64s
    block: int

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (*self.steps.values(), *self.values.values(), self.first))


def read_raw_steps(
    windows: Windows, manifest: Manifest, columns: Sequence[Feature], numbers: Int64s, places: Places
) -> RawSteps:
    """Read the columns of the windows of these ascending numbers, of which `places` tells where their steps go.

    Goes once through the shards, and needs the memory of a piece besides what it returns: 4 MiB, or a whole shard where
    records hold several windows. Errors: ShardError.
    """
    timed = [column for column in columns if column.shape]
    single = [column for column in columns if not column.shape]
    steps = {column.name: _array((places.steps, *column.shape[1:]), column.numpy_dtype) for column in timed}
    values = {column.name: _array(numbers.shape, column.numpy_dtype) for column in single}
    gatherer, nbytes, pieces = (
        Gatherer(manifest, single),
        manifest.layout.record_bytes,
        cut_shards(windows.shards, manifest),
    )
    memory = np.empty((max(piece.records for piece in pieces), nbytes), np.uint8)
    firsts = np.cumsum([0, *(piece.windows for piece in pieces)])
    ends = np.searchsorted(numbers, firsts)
    for piece, first, (begin, end) in zip(pieces, firsts[:-1].tolist(), pairwise(ends.tolist()), strict=True):
        if begin == end:
            continue
        rows, mine = numbers[begin:end] - first, slice(begin, end)
        read_piece(piece, memory[: piece.records])
        records = Records(manifest, piece, memory[: piece.records])
        outs = [values[column.name][mine] for column in single]
        gatherer.gather({0: records}.__getitem__, np.zeros_like(rows), rows, outs)
        some = Places(places.first[mine], places.fresh[mine], places.steps, places.block)
        _copy_steps(manifest, records, rows, some, {column: steps[column.name] for column in timed})
    return RawSteps(steps, values, places.first, places.block)


def _array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Of undefined content, in memory that TensorFlow takes over without a copy."""
    return Buffers(int(np.prod(shape)) * dtype.itemsize, idle=0).array(shape, dtype)


def _copy_steps(
    manifest: Manifest, piece: Records, rows: Int64s, places: Places, outs: dict[Feature, np.ndarray]
) -> None:
    """Copy the fresh steps of windows, given by their rows in a piece, to their places."""
    window, layout, block = manifest.window, manifest.layout, places.block
    shared = window.per_record > 1
    records, offsets = piece.find(rows)
    offsets = np.zeros_like(rows) if offsets is None else offsets
    apart = window.stride if shared else 1  # between two steps of a window, as stored
    fresh = places.fresh // block
    most = max(column.nbytes for column in outs) // window.length * block if outs else 1
    for begin, end in runs(fresh, max(1, _COPIED_BYTES // most)):
        copied = fresh[begin:end]
        owners = np.repeat(np.arange(begin, end), copied)
        # The fresh blocks of a window are its last ones.
        blocks = np.arange(len(owners)) - np.repeat(np.cumsum(copied), copied) + window.length // block
        to, source, at = places.first[owners] // block + blocks, records[owners], offsets[owners]
        at = at + blocks * (block * apart)
        for column, out in outs.items():
            field = layout.field(column.name)
            stored = field.feature.shape[0]
            step = field.nbytes // stored
            # Every block that could be copied: (records, its first step) of steps, which are void to be copied fast.
            each, inner = (step * block, ()) if apart == 1 else (step, (block,))
            view: np.ndarray = np.ndarray(
                (len(piece.raw), stored - (block - 1) * apart, *inner),
                np.dtype((np.void, each)),
                piece.raw,
                field.offset,
                (layout.record_bytes, step, *([apart * step] if inner else [])),
            )
            out.reshape(-1).view(view.dtype).reshape(-1, *inner)[to] = view[source, at]
