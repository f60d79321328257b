"""Training steps: which positions of an epoch's order each step takes, and which of them each part has. Pure."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from shards.windows import Int64s

Remainder = Literal["keep", "drop", "repeat"]
REMAINDERS: tuple[Remainder, ...] = get_args(Remainder)


@dataclass(frozen=True)
class Steps:
    """An epoch of `windows` windows in global batches of `batch`: step s is the positions [s * batch, (s + 1) * batch).

    Of each, part p of `parts` has the p-th of `parts` equal ranges; `parts` divides `batch`. What is left after the
    last full batch is a smaller batch ("keep", of one part only), left out ("drop"), or filled up with the first
    positions of the same epoch ("repeat").

    >>> Steps(windows=10, batch=4, remainder="repeat", part=1, parts=2).positions(0, 3).tolist()
    [2, 3, 6, 7, 0, 1]
    """

    windows: int
    batch: int
    remainder: Remainder
    part: int = 0
    parts: int = 1

    def __len__(self) -> int:
        """Steps of an epoch: the same for every part."""
        return self.windows // self.batch if self.remainder == "drop" else -(-self.windows // self.batch)

    @property
    def part_batch(self) -> int:
        """Windows of this part in a full step."""
        return self.batch // self.parts

    def positions(self, first: int, last: int) -> Int64s:
        """The positions of this part in the steps [first, last), one step after the other."""
        steps = np.arange(first, min(last, len(self)), dtype=np.int64)[:, np.newaxis]
        positions = (steps * self.batch + self.part * self.part_batch + np.arange(self.part_batch)).ravel()
        return positions[positions < self.windows] if self.remainder == "keep" else positions % self.windows
