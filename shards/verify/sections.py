"""Which record of a split holds which windows: its records numbered through its sections of episodes, as columns."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..episode_table import EpisodeRow
from ..record import MAX_EPISODES, MAX_STEPS
from ..windows import Int64s, WindowSpec


class Sections:
    """The sections of one split by episode, in `places` 0, 1, ...; arrays alone, so that workers get few bytes.

    `episode`, `begin`, `steps` and `total`, the steps of the whole episode, are columns by place; record `first[place]`
    of the split is the place's first one.
    """

    def __init__(self, window: WindowSpec, rows: Sequence[EpisodeRow]) -> None:
        self.window = window
        columns = [(row.episode, row.begin, row.end - row.begin, row.steps) for row in rows]
        table = np.array(columns, np.int64).reshape(-1, 4)
        self.episode, self.begin, self.steps, self.total = np.ascontiguousarray(
            table[np.argsort(table[:, 0], kind="stable")].T
        )
        self.windows = window.count(self.steps)
        self.first = np.concatenate([[0], np.cumsum(-(-self.windows // window.per_record))])

    @property
    def records(self) -> int:
        """How many records the split should have."""
        return int(self.first[-1])

    def find(self, index: Mapping[str, Int64s]) -> Int64s:
        """The number of each record with these `episode`, `start`, ... values; -1 where the split has none such.

        The values may be any int64s.
        """
        window = self.window
        if not len(self.episode):
            return np.full(len(index["episode"]), -1)
        place = np.minimum(np.searchsorted(self.episode, index["episode"]), len(self.episode) - 1)
        begin, steps = self.begin[place], self.steps[place]
        right = (self.episode[place] == index["episode"]) & (index["start"] >= begin) & (index["start"] < begin + steps)
        start = np.where(right, index["start"] - begin, 0)
        turn = -(-start // window.shift)  # an aligned window starts before the multiple of `shift` that is its turn
        right &= (turn < self.windows[place]) & (turn % window.per_record == 0) & (window.start(turn, steps) == start)
        turn = np.where(right, turn, 0)
        count, valid = window.record(turn, steps)
        if "count" in index:
            right &= index["count"] == count
        if "valid" in index:
            right &= index["valid"] == valid
        return np.where(right, self.first[place] + turn // window.per_record, -1)

    def locate(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """(the place, the first window there) of records by their numbers."""
        place = np.searchsorted(self.first, numbers, side="right") - 1
        return place, (numbers - self.first[place]) * self.window.per_record

    def origins(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """(the episode, its step that the record begins with) of records by their numbers."""
        place, turn = self.locate(numbers)
        return self.episode[place], self.begin[place] + self.window.start(turn, self.steps[place])


def wrong_rows(rows: Sequence[EpisodeRow], window: WindowSpec) -> list[str]:
    """The paths of sections that cannot be: not of their episode, or without the windows that their steps give."""
    fit = [0 <= row.begin <= row.end <= row.steps < MAX_STEPS and 0 <= row.episode < MAX_EPISODES for row in rows]
    steps = np.array([row.end - row.begin if right else 0 for row, right in zip(rows, fit, strict=True)], np.int64)
    counts = window.count(steps).tolist()
    numbers: set[int] = set()
    wrong = []
    for row, right, count in zip(rows, fit, counts, strict=True):
        if not right or row.windows != count or row.episode in numbers:
            wrong.append(row.path)
        numbers.add(row.episode)
    return wrong
