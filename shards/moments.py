"""Statistics of a feature's values: the same bits on any machine, with any NumPy and any number of processes.

Each value is a float64, and all arithmetic is single IEEE operations on whole arrays (+, -, *, /, min, max) in an order
that is fixed here: sums go by halves. np.sum adds in an order that depends on the processor and on NumPy's version.

Sources: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", The American Statistician 37 (1983): the
two-pass algorithm with its correction, and the merging of two parts; also there, that merging in a balanced tree keeps
the rounding errors small. Knuth, "The Art of Computer Programming", volume 2, 4.2.2: a sum and its rounding error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Values of a block, and the most components measured at once: both are part of the definition of the results, since
# they fix the order of the additions. Two blocks of float64 fit a core's second cache.
_BLOCK = 2**16
_COMPONENTS = 2**9

_LARGEST = float(np.finfo(np.float64).max)
_LARGE, _SHRINK, _GROW = 2.0**480, 2.0**-600, 2.0**600  # beyond _LARGE, the sum of a block's squares could overflow


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of values by component: the last axis of a step, or one component where a step is a single number.

    Each array has shape (components,). count (of the finite values), nan, infinite: int64. mean, rest (what rounding
    took from the mean), squares (the sum of squared deviations from the mean), low, high, all of the finite values:
    float64; where there are none, mean, rest and squares are 0, low is +inf and high -inf. What would be larger than
    any float64 is the largest.
    """

    count: NDArray[np.int64]
    nan: NDArray[np.int64]
    infinite: NDArray[np.int64]
    mean: Floats
    rest: Floats  # without it, merging would lose small differences of large means
    squares: Floats
    low: Floats
    high: Floats

    def to_bytes(self) -> bytes:
        """The arrays one after the other, little-endian: 64 bytes a component."""
        return b"".join(getattr(self, name).astype(dtype).tobytes() for name, dtype in _DTYPES.items())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Moments":
        """The inverse of `to_bytes`; ValueError for what it cannot have made."""
        rows = np.frombuffer(data, np.uint8).reshape(len(_DTYPES), -1)
        return cls(**{
            name: row.view(dtype).astype(dtype[1:]) for row, (name, dtype) in zip(rows, _DTYPES.items(), strict=True)
        })  # fmt: skip


_DTYPES = dict.fromkeys(("count", "nan", "infinite"), "<i8") | dict.fromkeys(
    ("mean", "rest", "squares", "low", "high"), "<f8"
)


def measure(values: np.ndarray) -> Moments:
    """The moments of (n, *step_shape) values of any dtype but complex, in any byte order and memory layout.

    All axes but the last are counted alike; one-dimensional values have a single component.
    """
    if values.ndim == 1:
        values = values[:, np.newaxis]
    components = values.shape[-1]
    if components > _COMPONENTS:  # columns apart, so that a block has rows enough
        parts = [measure(values[..., i : i + _COMPONENTS]) for i in range(0, components, _COMPONENTS)]
        return _each(np.concatenate, *parts)
    if values.size == 0:
        return _empty(components)
    rows = _BLOCK // components
    rows_of_step = values[0].size // components
    steps = max(1, rows // rows_of_step)
    spare = np.empty((2, min(rows, len(values) * rows_of_step) * components))
    blocks = []
    with np.errstate(all="ignore"):  # what overflows is mended below
        for first in range(0, len(values), steps):
            chunk = values[first : first + steps].reshape(-1, components)  # copies a block or a step at most
            blocks += [_measure_block(chunk[at : at + rows], spare) for at in range(0, len(chunk), rows)]
        return blocks[0] if len(blocks) == 1 else _merge_rows(_each(np.stack, *blocks))


def merge(parts: Sequence[Moments]) -> Moments:
    """The moments of all that one or more parts were measured of, merged as a balanced tree over the order given."""
    with np.errstate(all="ignore"):
        return _merge_rows(_each(np.stack, *parts))


class Merging:
    """Parts that come one by one, merged to what `merge` would give of all of them, in memory for a few."""

    def __init__(self) -> None:
        self._merged: list[tuple[int, Moments]] = []  # (how many parts, of which powers of two are merged)

    def add(self, part: Moments) -> None:
        """Take the next part."""
        parts = 1
        while self._merged and self._merged[-1][0] == parts:
            part, parts = merge([self._merged.pop()[1], part]), 2 * parts
        self._merged.append((parts, part))

    def result(self) -> Moments | None:
        """The moments of all parts so far; None if there is none."""
        merged = None
        for _, part in reversed(self._merged):
            merged = part if merged is None else merge([part, merged])
        return merged


def total(moments: Moments) -> Moments:
    """The moments of all components together, as a single component."""
    if not len(moments.count):
        return _empty(1)
    with np.errstate(all="ignore"):
        return _merge_rows(_rows(moments, (slice(None), np.newaxis)))


def _empty(components: int) -> Moments:
    none, zero = np.zeros(components, np.int64), np.zeros(components)
    return Moments(none, none, none, zero, zero, zero, zero + math.inf, zero - math.inf)


def _each(function: Any, *parts: Moments) -> Moments:
    """The moments whose every array is the function of the list of the parts' arrays."""
    return Moments(**{name: function([getattr(part, name) for part in parts]) for name in _DTYPES})


def _measure_block(block: np.ndarray, spare: Floats) -> Moments:
    """The moments of (rows, components) values; `spare` is memory to work in, two rows of a block's size or more."""
    rows, components = block.shape
    x, other = spare[:, : block.size]  # flat, so that each operation is one loop, however few the components are
    np.copyto(x.reshape(rows, components), block, casting="unsafe")
    count = np.full(components, rows, np.int64)
    nan = infinite = np.zeros(components, np.int64)
    low, high = _extreme(np.minimum, x, other, components), _extreme(np.maximum, x, other, components)
    left_out = None
    # A NaN goes into the minimum, and an infinity is the minimum or the maximum.
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        left_out = ~np.isfinite(x)
        nan, all_out = _count(np.isnan(x), components), _count(left_out, components)
        infinite, count = all_out - nan, count - all_out
        np.copyto(x, math.inf, where=left_out)
        low = _extreme(np.minimum, x, other, components)
        np.copyto(x, -math.inf, where=left_out)
        high = _extreme(np.maximum, x, other, components)
        np.copyto(x, 0.0, where=left_out)
    large = np.maximum(high, -low) > _LARGE
    if large.any():
        _by_row(np.multiply, x, np.where(large, _SHRINK, 1.0))
    divisor = np.maximum(count, 1).astype(np.float64)
    mean = _fold(np.add, x, other, components) / divisor
    _by_row(np.subtract, x, mean)
    if left_out is not None:
        np.copyto(x, 0.0, where=left_out)
    rest = _fold(np.add, x, other, components) / divisor  # not 0, since the mean was rounded
    np.multiply(x, x, out=x)
    squares = np.maximum(_fold(np.add, x, x, components) - rest * rest * divisor, 0.0)
    if large.any():
        grow = np.where(large, _GROW, 1.0)
        mean, rest, squares = mean * grow, rest * grow, np.minimum(squares * grow * grow, _LARGEST)
    return Moments(count, nan, infinite, *_mean(mean, rest, low, high), squares, low, high)


def _extreme(operation: np.ufunc, x: Floats, into: Floats, components: int) -> Floats:
    """The least or largest row by row: no order of comparing makes a difference, so NumPy's own, faster one serves."""
    if components > 1:
        return _fold(operation, x, into, components)
    return np.asarray([operation.reduce(x) + 0.0])


def _fold(operation: np.ufunc, x: Floats, into: Floats, components: int) -> Floats:
    """Combine all rows of flat values into one by halves, in the memory `into`, which may be that of the values.

    Of 2k or 2k+1 rows, row i takes in the i-th of the last k, until one is left; a middle one waits for the next round.
    """
    rows = x.size // components
    while True:
        half = rows // 2 * components
        kept = rows * components - half
        operation(x[:half], x[kept : kept + half], out=into[:half])
        if into is not x:
            into[half:kept] = x[half:kept]
            x = into
        rows -= rows // 2
        if rows <= 1:
            return into[:components] + 0.0  # a copy, and -0.0 becomes 0.0: min and max may choose either of the two


def _by_row(operation: np.ufunc, x: Floats, row: Floats) -> None:
    """Apply an operation with the same row to every row of flat values, in place."""
    # A short row would make a loop of a few steps for each row of x.
    wide = np.concatenate([row] * max(1, min(512, x.size) // row.size))
    whole = x.size // wide.size * wide.size
    table = x[:whole].reshape(-1, wide.size)
    operation(table, wide, out=table)
    operation(x[whole:], wide[: x.size - whole], out=x[whole:])


def _count(where: NDArray[np.bool_], components: int) -> NDArray[np.int64]:
    """How many are true in each column of a flat array."""
    ones = where.astype(np.float64)
    return _fold(np.add, ones, ones, components).astype(np.int64)


def _mean(mean: Floats, rest: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """The float64 nearest to mean + rest, kept in [low, high] whatever the rounding, and what is left.

    That makes it exact where all values are the same.
    """
    rounded, left = _add(mean, rest)
    clamped = np.where(low <= high, np.minimum(np.maximum(rounded, low), high), 0.0) + 0.0
    return clamped, np.where((low < high) & (clamped == rounded) & np.isfinite(left), left, 0.0)


def _add(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The sum and its rounding error, which is exact unless the sum overflows."""
    result = a + b
    added = result - a
    return result, (a - (result - added)) + (b - added)


def _merge_rows(table: Moments) -> Moments:
    """Merge moments with arrays of shape (n, components): neighbours in pairs, until one is left."""
    while len(table.count) > 1:
        paired = len(table.count) // 2 * 2
        pairs = _merge_pair(_rows(table, slice(0, paired, 2)), _rows(table, slice(1, paired, 2)))
        table = _each(np.concatenate, pairs, _rows(table, slice(paired, None)))
    return _rows(table, 0)


def _rows(table: Moments, index: Any) -> Moments:
    return _each(lambda arrays: arrays[0][index], table)


def _merge_pair(a: Moments, b: Moments) -> Moments:
    """The moments of each component of two parts together; arrays of any shape."""
    count = a.count + b.count
    share = b.count / np.maximum(count, 1)
    step, step_rest = b.mean - a.mean, b.rest - a.rest
    mean, error = _add(a.mean, step * share)
    rest = error + (a.rest + step_rest * share)
    fits = np.isfinite(step)
    mean = np.where(fits, mean, a.mean * (1.0 - share) + b.mean * share)
    rest = np.where(fits & np.isfinite(rest), rest, 0.0)
    delta = step + step_rest
    between = np.where((a.count > 0) & (b.count > 0), delta * (a.count * share) * delta, 0.0)
    squares = np.minimum(a.squares + b.squares + between, _LARGEST)
    low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
    nan, infinite = a.nan + b.nan, a.infinite + b.infinite
    return Moments(count, nan, infinite, *_mean(mean, rest, low, high), squares, low, high)
