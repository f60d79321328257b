"""What a shard's records say of the values of their steps, each covered step once: statistics, and what is not finite.

`pipeline` measures the episodes; this measures the windows, and in another order.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..features import kind_of
from ..manifest import MAX_NONFINITE, Manifest
from ..record import Field
from ..windows import Int64s, WindowSpec
from .sections import Sections
from .sums import Sums, add_up, together

#: {(episode, feature): (values, first step)}
Places = dict[tuple[int, str], tuple[int, int]]


def can_measure(window: WindowSpec) -> bool:
    """Whether the steps of a record that are in no earlier one are a range of those it stores."""
    return window.per_record == 1 or (window.stride == 1 and window.shift <= window.length)


class MeasuredRecords:
    """What was measured of the records of one split that were added."""

    def __init__(self, manifest: Manifest, sections: Sections, statistics: bool) -> None:
        self._sections, self._fields = sections, [manifest.layout.field(each.name) for each in manifest.features]
        self._told = {each.feature: each for each in manifest.statistics if statistics}
        self._sums: dict[str, Sums] = {}
        self._nonfinite: Places = {}

    def add(self, records: NDArray[np.uint8], numbers: Int64s) -> None:
        """Measure (n, record_bytes) records, which are those of these numbers in the split."""
        sections, window = self._sections, self._sections.window
        place, turn = sections.locate(numbers)
        steps = sections.steps[place]
        fresh, (_, valid) = window.fresh(turn, steps), window.record(turn, steps)
        start = sections.begin[place] + window.start(turn, steps)
        keys = fresh * (window.record_steps + 1) + valid
        groups = [np.flatnonzero(keys == key) for key in np.unique(keys)]  # two, and one or two a section's end
        for field in self._fields:
            if not field.feature.shape:
                if kind_of(field.feature.dtype) in "fc":
                    self._tell(field, ~_finite(field.values(records)), sections.episode[place], None)
                continue
            values = field.values(records)
            for rows in groups:
                low, high = int(fresh[rows[0]]), int(valid[rows[0]])
                if low < high:
                    chosen = values[:, low:high] if len(rows) == len(records) else values[rows, low:high]
                    first = start[rows] + low * window.stride  # `stride` is 1 where records hold several windows
                    self._measure(field, chosen, sections.episode[place[rows]], first)

    def _measure(self, field: Field, values: np.ndarray, episode: Int64s, first: Int64s) -> None:
        name, kind = field.feature.name, kind_of(field.feature.dtype)
        if name in self._told:
            part = add_up(values, self._told[name])
            self._sums[name] = together([self._sums[name], part]) if name in self._sums else part
            suspect = bool(part.nan.any() or part.infinite.any())
        else:
            suspect = kind in "fc" and not _finite(values).all()
        if suspect:
            bad = ~_finite(values)
            self._tell(field, bad.reshape(*bad.shape[:2], -1).sum(axis=2), episode, first)

    def _tell(self, field: Field, bad: np.ndarray, episode: Int64s, first: Int64s | None) -> None:
        """Take in how many values of each record's (n, steps), or of the n records' episodes, are not finite."""
        rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
        episodes, which = np.unique(episode[rows], return_inverse=True)
        values, steps = np.ones(len(episodes), np.int64), np.zeros(len(episodes), np.int64)
        if first is not None:
            values[:] = 0
            np.add.at(values, which, bad[rows].sum(axis=1))
            steps[:] = np.iinfo(np.int64).max
            stride = self._sections.window.stride
            np.minimum.at(steps, which, first[rows] + stride * (bad[rows] > 0).argmax(axis=1))
        found = zip(episodes.tolist(), values.tolist(), steps.tolist(), strict=True)
        add_places(
            self._nonfinite, {(number, field.feature.name): (n, step) for number, n, step in found}, first is None
        )

    def sums(self) -> dict[str, Sums]:
        """The sums of each feature that has statistics."""
        return self._sums

    def nonfinite(self) -> Places:
        """The first places of values that are not finite, as many as a manifest can name."""
        return dict(sorted(self._nonfinite.items())[:MAX_NONFINITE])


def add_places(places: Places, more: Mapping[tuple[int, str], tuple[int, int]], whole: bool) -> None:
    """Add what was found elsewhere, and keep some of the first; `whole` values of an episode count once."""
    for key, (values, step) in more.items():
        before, first = places.get(key, (0, step))
        places[key] = values if whole else before + values, min(first, step)
    if len(places) > 4 * MAX_NONFINITE:
        for key in sorted(places)[MAX_NONFINITE:]:
            del places[key]


def _finite(values: np.ndarray) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):  # bfloat16 raises it for signalling NaNs
        finite: NDArray[np.bool_] = np.isfinite(values)
    return finite
