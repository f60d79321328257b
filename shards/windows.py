"""Which steps each window holds: the arithmetic alone, on integers or int64 arrays, which broadcast.

Window i of T steps holds the steps start(i) + k * stride for k in [0, length). `shift` and `stride` mean what they mean
in `tf.data.Dataset.window`. T are the steps of an episode, or of the section of it that a split has; `start` and all
else here count from where those begin, and no window reaches beyond them.
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

#: Lengths, shifts, strides and windows a record are smaller, so that products of two are int64s.
MAX_STEPS_APART = 2**31

Tail = Literal["drop", "pad", "align"]
TAILS: tuple[Tail, ...] = get_args(Tail)
Steps = Any  # an int or an int64 array
Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class WindowSpec:
    """How windows are cut: `length` steps, `stride` apart, a window every `shift` steps; `per_record` windows a record.

    Full windows start at 0, shift, 2 * shift, ... as long as all their steps exist. `tail` says what becomes of steps
    after the end of the last full window:

    drop: nothing.
    pad: one window more, at the next multiple of `shift` if that is a step, filled up with zeros.
    align: one window more, which ends exactly at the last step; none if T is less than one window.
    """

    length: int
    shift: int
    stride: int = 1
    tail: Tail = "drop"
    per_record: int = 1

    @property
    def extent(self) -> int:
        """Steps from the first to the last step of a window, both included."""
        return (self.length - 1) * self.stride + 1

    @property
    def record_steps(self) -> int:
        """Steps that a record stores: those of its one window, or every step that its several windows may reach."""
        return self.length if self.per_record == 1 else (self.per_record - 1) * self.shift + self.extent

    def count(self, steps: Steps) -> Int64s:
        """How many windows there are.

        >>> WindowSpec(4, shift=2).count(np.array([3, 4, 5, 6])).tolist()
        [0, 1, 1, 2]
        >>> WindowSpec(4, shift=2, tail="pad").count(np.array([0, 3, 4, 5, 6])).tolist()
        [0, 1, 1, 2, 2]
        >>> WindowSpec(4, shift=2, tail="align").count(np.array([3, 4, 5, 6])).tolist()
        [0, 1, 2, 2]
        """
        full = self._full(steps)
        if self.tail == "drop":
            return full
        if self.tail == "align":
            aligned: Int64s = full + ((steps > self.extent) & ((steps - self.extent) % self.shift != 0))
            return aligned
        end = np.where(full > 0, (full - 1) * self.shift + self.extent, 0)  # of the last full window
        more: Int64s = full + ((end < steps) & (full * self.shift < steps))
        return more

    def start(self, index: Steps, steps: Steps) -> Int64s:
        """The first step of window `index`.

        >>> WindowSpec(4, shift=2, tail="align").start(np.arange(2), 5).tolist()
        [0, 1]
        """
        if self.tail == "align":
            aligned: Int64s = np.minimum(index * np.int64(self.shift), steps - self.extent)
            return aligned
        regular: Int64s = index * np.int64(self.shift)
        return regular

    def valid(self, index: Steps, steps: Steps) -> Int64s:
        """How many of the `length` steps of window `index` are real; the rest are zeros.

        >>> WindowSpec(4, shift=2, tail="pad").valid(np.arange(2), 5).tolist()
        [4, 3]
        """
        return self.real(steps - self.start(index, steps))

    def real(self, left: Steps) -> Int64s:
        """How many of the `length` steps of a window are real, from whose start `left` steps are."""
        real: Int64s = np.minimum(-(-left // self.stride), self.length)
        return real

    def records(self, steps: Steps) -> Int64s:
        """How many records hold the windows.

        >>> WindowSpec(4, shift=2, per_record=2).records(np.array([3, 4, 6, 8])).tolist()
        [0, 1, 1, 2]
        """
        records: Int64s = -(-self.count(steps) // self.per_record)
        return records

    def record(self, first: Steps, steps: Steps) -> tuple[Int64s, Int64s]:
        """(windows, real ones of the stored steps) of the record that begins with window `first`.

        >>> [part.tolist() for part in WindowSpec(4, shift=2, per_record=2).record(np.array([0, 2]), 9)]
        [[2, 1], [6, 4]]
        """
        beyond = np.minimum(first + self.per_record, self.count(steps))
        if self.per_record == 1:
            return beyond - first, self.valid(first, steps)
        end = np.minimum(self.start(beyond - 1, steps) + self.extent, steps)
        return beyond - first, end - self.start(first, steps)

    def fresh(self, index: Steps, steps: Steps) -> Int64s:
        """The k from which on no earlier window has the steps of window `index`; all before are in an earlier one.

        So [fresh, valid) of all windows are every covered step once.

        >>> WindowSpec(4, shift=2).fresh(np.arange(3), 8).tolist()
        [0, 2, 2]
        >>> WindowSpec(4, shift=2, tail="align").fresh(np.arange(3), 7).tolist()
        [0, 2, 3]
        """
        # Steps k of window i and k' of window j < i are the same one where (i - j) * shift == (k' - k) * stride. The
        # nearest such j is `_again` windows before, and k' is k + `_lag` there.
        index = np.asarray(index, np.int64)
        seen = np.where(index >= self._again, max(self.length - self._lag, 0), 0)
        if self.tail == "align":
            full = self._full(steps)
            seen = np.where(index == full, np.maximum(self.length - self._aligned_lag(full, steps), 0), seen)
        return np.minimum(seen, self.valid(index, steps))

    def covered(self, steps: Steps) -> Int64s:
        """How many steps lie in at least one window.

        >>> WindowSpec(4, shift=2).covered(np.array([3, 4, 5, 6])).tolist()
        [0, 4, 4, 6]
        >>> int(WindowSpec(2, shift=10).covered(25))
        6
        """
        full, count = self._full(steps), self.count(steps)
        first = np.minimum(full, self._again)  # these share no step
        covered = first * self.length + (full - first) * min(self._lag, self.length)
        last = self.valid(full, steps) - self.fresh(full, steps)
        more: Int64s = covered + np.where(count > full, last, 0)
        return more

    def _full(self, steps: Steps) -> Int64s:
        # (steps - extent) // shift is -1 or less below one window, and is clipped there, never counted.
        full: Int64s = np.maximum((steps - self.extent) // np.int64(self.shift) + 1, 0)
        return full

    @cached_property
    def _again(self) -> int:
        return self.stride // gcd(self.shift, self.stride)

    @cached_property
    def _lag(self) -> int:
        return self.shift // gcd(self.shift, self.stride)

    def _aligned_lag(self, full: Int64s, steps: Steps) -> Int64s:
        """How many strides the aligned window lies behind the nearest full window that has some of its steps."""
        start = steps - self.extent
        unit = gcd(self.shift, self.stride)
        nearest = (start // unit) % self._again * pow(self._lag, -1, self._again) % self._again
        window = full - 1 - (full - 1 - nearest) % self._again
        lag: Int64s = np.where(window < 0, self.length, (start - window * self.shift) // self.stride)
        return np.where(start % unit == 0, lag, self.length)
