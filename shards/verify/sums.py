"""Sums of values that confirm statistics which are told already: several times faster than to measure them anew.

The deviations from the mean that is told are summed, and their squares: if it is the mean, nothing is lost in rounding.
Sums of squares overflow from 10**150 on, where mean and standard deviation are believed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..statistics import Statistics, Summary

Floats = NDArray[np.float64]

_WIDTH = 2**10  # values of a row that operations go through: a row for each step of few components would be slow
_BLOCK = 2**15  # values whose deviations fit a core's second cache
_MEAN_ERROR, _STD_ERROR = 1e-12, 1e-9


class Sums(NamedTuple):
    """Of values by component, each of shape (components,): how many are finite, NaN and infinite; of the finite ones
    the least, the largest, and the sums of their deviations from the means that are told and of the squares of these.
    """

    finite: NDArray[np.int64]
    nan: NDArray[np.int64]
    infinite: NDArray[np.int64]
    low: Floats
    high: Floats
    first: Floats
    second: Floats


def add_up(values: np.ndarray, told: Statistics) -> Sums:
    """The sums of (n, *step_shape) values of any dtype but complex, which are one step or more."""
    center = np.array([component.mean for component in told.components])
    flat = values.reshape(-1, len(center))
    if flat.dtype.itemsize == 2 and flat.dtype.kind not in "iu":  # half floats are computed with one by one
        flat = flat.astype(np.float32)
    nan = infinite = np.zeros(len(center), np.int64)
    with np.errstate(all="ignore"):
        low, high = (_columns(each, flat).astype(np.float64) for each in (np.minimum, np.maximum))
        # A NaN goes into the minimum, and an infinity is the minimum or the maximum.
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            out = ~np.isfinite(flat)
            nan = np.count_nonzero(np.isnan(flat), axis=0)
            infinite = np.count_nonzero(out, axis=0) - nan
            low = flat.min(axis=0, where=~out, initial=np.inf).astype(np.float64)
            high = flat.max(axis=0, where=~out, initial=-np.inf).astype(np.float64)
            flat = np.where(out, center, flat.astype(np.float64))
        first, second = _deviations(flat, center)
    return Sums(len(flat) - nan - infinite, nan, infinite, low, high, first, second)


def _folded(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, components) values in rows of many steps, and those that are left, a row each."""
    components = flat.shape[1]
    steps = max(1, min(len(flat), _WIDTH // components))
    whole = len(flat) // steps * steps
    return flat[:whole].reshape(-1, steps * components), flat[whole:]


def _columns(operation: np.ufunc, flat: np.ndarray) -> np.ndarray:
    wide, rest = _folded(flat)
    table = operation.reduce(wide, axis=0).reshape(-1, flat.shape[1])
    return np.asarray(operation.reduce(np.concatenate([table, rest]), axis=0))


def _deviations(flat: np.ndarray, center: Floats) -> tuple[Floats, Floats]:
    """The sums of the deviations from the center, and of their squares."""
    first, second = np.zeros((2, len(center)))
    for table in _folded(flat):
        if not len(table):
            continue
        width = table.shape[1]
        row, rows = np.tile(center, width // len(center)), max(1, _BLOCK // width)
        spare = np.empty((min(rows, len(table)), width))
        for at in range(0, len(table), rows):
            part = table[at : at + rows]
            apart = np.subtract(part, row, out=spare[: len(part)], dtype=np.float64)
            first += apart.sum(axis=0).reshape(-1, len(center)).sum(axis=0)
            second += np.einsum("ij,ij->j", apart, apart).reshape(-1, len(center)).sum(axis=0)
    return first, second


def together(parts: Sequence[Sums]) -> Sums:
    """The sums of all that some parts are of."""
    table = Sums(*(np.stack(column) for column in zip(*parts, strict=True)))
    low, high = table.low.min(axis=0), table.high.max(axis=0)
    count, nan, infinite = (each.sum(axis=0) for each in (table.finite, table.nan, table.infinite))
    return Sums(count, nan, infinite, low, high, table.first.sum(axis=0), table.second.sum(axis=0))


def confirms(sums: Sums, told: Statistics) -> bool:
    """Whether statistics are those of the values: all but mean and standard deviation exactly."""
    with np.errstate(all="ignore"):
        count = np.maximum(sums.finite, 1)
        mean = np.array([component.mean for component in told.components]) + sums.first / count
        squares = np.maximum(sums.second - sums.first * sums.first / count, 0.0)
        total = max(int(sums.finite.sum()), 1)
        average = float((mean * (sums.finite / total)).sum())
        spread = float((squares + sums.finite * (mean - average) ** 2).sum())
    columns = zip(sums.finite, sums.nan, sums.infinite, sums.low, sums.high, mean, squares, strict=True)
    alike = all(_alike(*pair) for pair in zip(told.components, columns, strict=True))
    whole = (sums.finite.sum(), sums.nan.sum(), sums.infinite.sum(), sums.low.min(), sums.high.max(), average, spread)
    return alike and _alike(told.total, whole)


def _alike(told: Summary, found: tuple[float, ...]) -> bool:
    count, nan, infinite, low, high, mean, squares = found
    if (told.count, told.nan, told.infinite) != (count, nan, infinite):
        return False
    if not count:
        return True  # all else is 0, as the manifest's parser makes sure
    scale, std = max(abs(low), abs(high)), math.sqrt(squares / count)
    right = not math.isfinite(mean) or abs(told.mean - mean) <= _MEAN_ERROR * scale
    right &= not math.isfinite(squares) or abs(told.std - std) <= max(_STD_ERROR * std, _MEAN_ERROR * scale)
    return right and (told.min, told.max) == (low, high)
