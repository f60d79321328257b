"""The epoch order: which window comes at which position, a pure function of (seed, epoch).

The pieces of a split's shards are permuted and taken some at a time; all windows of such a pool are permuted together.
Any positions can be asked for on their own, so there is no shuffle buffer to fill, and nothing to be read or remembered
of what came before.
"""

from functools import lru_cache
from math import ceil, isqrt

import numpy as np
from numpy.typing import NDArray

from shards.keyed_hash import keyed_hash
from shards.windows import Int64s

_U = np.uint32
_SORTED = 2**16  # up to this size a permutation is sorted once, which is uniform; beyond, computed where it is needed
_ROUNDS = 6  # of the computed one
MAX_POOL_WINDOWS = 2**32 - 2**17  # the arithmetic below stays within 32 bits


class ShuffledOrder:
    """A new order each epoch, of a split whose pieces hold `windows` windows each.

    Pools have `pool` pieces, or fewer so that they are alike in size.
    """

    def __init__(self, windows: Int64s, seed: int, pool: int) -> None:
        self._windows = np.asarray(windows, np.int64)
        self._seed = seed
        pools = -(-len(self._windows) // pool)
        self._ends = len(self._windows) * np.arange(pools + 1) // pools
        self._pools_of = lru_cache(maxsize=3)(self._pools)  # two epochs meet where one ends, and a third is looked up

    def __len__(self) -> int:
        return int(self._windows.sum())

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The windows at some positions, as arrays (piece, row in it)."""
        pools, firsts = self._pools_of(epoch)
        numbers = np.searchsorted(firsts, positions, side="right") - 1
        pieces, rows = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            here = slice(None) if (numbers == number).all() else numbers == number
            first, stop = int(firsts[number]), int(firsts[number + 1])
            index = permute(positions[here] - first, stop - first, self._seed, epoch, 1 + number)
            pool = pools[number]
            ends = np.cumsum(self._windows[pool])
            place = np.searchsorted(ends, index, side="right")
            pieces[here], rows[here] = pool[place], index - (ends - self._windows[pool])[place]
        return pieces, rows

    def ahead(self, epoch: int, position: int) -> Int64s:
        """The pieces of the next pool that should be read by the time that a position of this pool is: as large a part
        of the next as this position is of its own.
        """
        pools, firsts = self._pools_of(epoch)
        number = int(np.searchsorted(firsts, position, side="right")) - 1
        following = pools[number + 1] if number + 1 < len(pools) else self._pools_of(epoch + 1)[0][0]
        done = (position + 1 - int(firsts[number])) / int(firsts[number + 1] - firsts[number])
        return following[: ceil(done * len(following))]

    def _pools(self, epoch: int) -> tuple[list[Int64s], Int64s]:
        """(the pieces of each pool of an epoch, the first position of each pool and the end of the last)."""
        pieces = np.argsort(keyed_hash(np.arange(len(self._windows)), self._seed, epoch), kind="stable")
        sums = np.concatenate([[0], np.cumsum(self._windows[pieces])])
        return np.split(pieces, self._ends[1:-1]), sums[self._ends]


class FixedOrder:
    """The same order in every epoch, given as (piece, row in it) arrays of all windows."""

    def __init__(self, pieces: Int64s, rows: Int64s) -> None:
        self._pieces, self._rows = pieces, rows

    def __len__(self) -> int:
        return len(self._pieces)

    def at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s]:
        """As in `ShuffledOrder`."""
        return self._pieces[positions], self._rows[positions]

    def ahead(self, epoch: int, position: int) -> Int64s:
        """None: it jumps among all."""
        return np.empty(0, np.int64)


Order = ShuffledOrder | FixedOrder


def permute(positions: Int64s, size: int, *key: int) -> Int64s:
    """Where a keyed permutation of range(size), size <= MAX_POOL_WINDOWS, sends each position.

    >>> sorted(permute(np.arange(10), 10, 7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if size <= _SORTED:
        return _sorted_permutation(size, key)[positions]
    return _computed_permutation(positions, size, keyed_hash(np.arange(2 * _ROUNDS), *key).astype(_U))


@lru_cache(maxsize=4)
def _sorted_permutation(size: int, key: tuple[int, ...]) -> Int64s:
    return np.argsort(keyed_hash(np.arange(size), *key), kind="stable")


def _computed_permutation(positions: Int64s, size: int, key: NDArray[_U]) -> Int64s:
    """A Feistel network over pairs (high, low) of a base near the square root of the size: nothing is looked up.

    What falls beyond the size is sent through again until it falls within. Sources: Luby, Rackoff, "How to construct
    pseudorandom permutations from pseudorandom functions", SIAM J. Comput. 1988; Black, Rogaway, "Ciphers with
    arbitrary finite domains", CT-RSA 2002.
    """
    low_base = isqrt(size - 1) + 1
    high_base = -(-size // low_base)
    a, b = _U(low_base), _U(high_base)

    def once(x: NDArray[_U]) -> NDArray[_U]:
        high = x // a
        low = x - high * a
        for k in range(0, 2 * _ROUNDS, 4):
            high += _scramble(low, key[k], key[k + 1], b)
            high -= b * (high >= b)
            low += _scramble(high, key[k + 2], key[k + 3], a)
            low -= a * (low >= a)
        return high * a + low

    sent = once(positions.astype(_U))
    while len(outside := np.flatnonzero(sent >= size)):  # high_base * low_base - size < low_base: next to none
        sent[outside] = once(sent[outside])
    return sent.astype(np.int64)


def _scramble(x: NDArray[_U], add: _U, multiply: _U, base: _U) -> NDArray[_U]:
    """A keyed hash of each x, reduced to range(base), base <= 2**16."""
    x = x + add
    x *= _U(0x9E3779B1)
    x ^= x >> _U(15)
    x *= multiply | _U(1)
    x >>= _U(16)
    x *= base
    x >>= _U(16)
    return x
