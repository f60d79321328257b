"""The plan: which window goes into which shard. A pure function of episode lengths and options, in NumPy alone.

What is shuffled is this plan, never the data. The windows of each episode are cut into spans of consecutive windows;
a keyed hash orders all spans of a split; the shards cut that order into equal pieces. A window is thus in exactly one
shard, and a shard's windows come from 64 places or more.

Every order comes from a keyed integer hash and a stable sort, not from a random generator whose stream could change:
the same input gives the same plan on any machine and NumPy version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from shards.errors import EpisodeError, OptionError
from shards.keyed_hash import keyed_hash
from shards.windows import count_windows

SPANS_PER_SHARD = 64  # at least, where the data allow: a shard is then a fair sample of its split
SPAN_SOURCE_BYTES = 2**20  # about; an object store wants large reads

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class SplitPlan:
    """One split: the rows of its episodes (ascending), and all its spans in the order in which they are written.

    Span j is windows [first[j], first[j] + count[j]) of episode span_episodes[j]. Spans are already cut where a shard
    ends: shard i holds the spans [shard_spans[i], shard_spans[i + 1]).
    """

    name: str
    episodes: Int64s
    span_episodes: Int64s
    first: Int64s
    count: Int64s
    shard_spans: Int64s

    @property
    def shards(self) -> int:
        """How many shards."""
        return len(self.shard_spans) - 1

    @property
    def windows(self) -> int:
        """How many windows."""
        return int(self.count.sum())

    def shard_windows(self) -> Int64s:
        """Windows of each shard."""
        sums = np.concatenate([[0], np.cumsum(self.count)])
        windows: Int64s = sums[self.shard_spans[1:]] - sums[self.shard_spans[:-1]]
        return windows


def plan_splits(
    steps: Int64s,
    *,
    length: int,
    shift: int,
    fractions: Mapping[str, str],
    shard_counts: Mapping[str, int | None],
    shard_size: int,
    record_bytes: int,
    step_bytes: int,
    seed: int,
) -> tuple[SplitPlan, ...]:
    """Plan every split, from the steps of each episode (0 for one that cannot be used).

    `shard_counts` gives the shards of a split, or None for as many as records of `record_bytes` fill shards of about
    `shard_size`; `step_bytes` are those of one step of the source.
    Errors: EpisodeError when there are too few windows or episodes, OptionError for more shards than windows.
    """
    windows = count_windows(steps, length, shift)
    if not windows.any():
        raise EpisodeError(f"no episode is as long as one window, {length} steps: the longest has {steps.max()}")
    plans = []
    for number, (name, episodes) in enumerate(split_episodes(windows, fractions, seed).items()):
        total = int(windows[episodes].sum())
        shards = shard_counts[name] or min(total, -(-total * record_bytes // shard_size))
        if shards > total:
            raise OptionError(f"num_shards asks for {shards} shards of split {name}, which has {total} windows")
        most = windows_per_span(total // shards, length, shift, step_bytes)
        span_episodes, first, count = cut_spans(episodes, windows, most)
        order = np.argsort(keyed_hash(np.arange(len(count)), seed, 1, number), kind="stable")
        plans.append(SplitPlan(name, episodes, *cut_shards(span_episodes[order], first[order], count[order], shards)))
    return tuple(plans)


def split_episodes(windows: Int64s, fractions: Mapping[str, str], seed: int) -> dict[str, Int64s]:
    """Deal the episodes that have windows to the splits, whole, by their shares of the windows.

    The episodes are put into a seeded order. All splits but the largest, from the smallest on, go along it once and
    take every episode not yet taken that brings them nearer to their share; the largest takes the rest. No split stays
    empty. Returns {split: rows, ascending}.
    """
    usable = np.flatnonzero(windows)
    if len(usable) < len(fractions):
        raise EpisodeError(
            f"{len(fractions)} splits need as many episodes that are as long as one window, but there are {len(usable)}"
        )
    left = usable[np.argsort(keyed_hash(usable, seed, 0), kind="stable")]
    total = int(windows.sum())
    dealt = {}
    ascending = sorted(fractions, key=lambda name: Fraction(fractions[name]))
    for position, name in enumerate(ascending[:-1]):
        spare = len(left) - (len(ascending) - 1 - position)  # the splits to come need an episode each
        taken = _take_near(windows[left], Fraction(fractions[name]) * total, spare)
        dealt[name] = np.sort(left[taken])
        left = np.delete(left, taken)
    dealt[ascending[-1]] = np.sort(left)
    return {name: dealt[name] for name in fractions}


def _take_near(sizes: Int64s, target: Fraction, most: int) -> Int64s:
    """Places of sizes, at least one and at most `most`, each of which brought the sum nearer to the target."""
    unit = target.denominator  # all in whole parts of it
    smallest, lacking = int(sizes.min()) * unit, target.numerator
    taken: list[int] = []
    for place, size in enumerate(sizes.tolist()):
        if 2 * lacking <= smallest or len(taken) == most:
            break
        if size * unit < 2 * lacking:
            taken.append(place)
            lacking -= size * unit
    return np.array(taken or [int(sizes.argmin())])


def windows_per_span(shard_windows: int, length: int, shift: int, step_bytes: int) -> int:
    """The most windows a span may have, in shards of `shard_windows` or one more.

    As many as read about SPAN_SOURCE_BYTES of the source, but so few that a shard holds SPANS_PER_SHARD spans.

    >>> windows_per_span(30_000, length=1024, shift=256, step_bytes=4), windows_per_span(10, 1024, 256, 4)
    (468, 1)
    >>> windows_per_span(30_000, length=16384, shift=4096, step_bytes=4)
    61
    """
    large_read = (SPAN_SOURCE_BYTES // step_bytes - length) // shift + 1
    return max(1, min(large_read, shard_windows // SPANS_PER_SHARD))


def cut_spans(episodes: Int64s, windows: Int64s, most: int) -> tuple[Int64s, Int64s, Int64s]:
    """Cut the windows of each episode into spans of `most` and a last shorter one: (episode, first, count) of each.

    >>> [column.tolist() for column in cut_spans(np.array([0, 2]), np.array([5, 9, 2]), most=2)]
    [[0, 0, 0, 2], [0, 2, 4, 0], [2, 2, 1, 2]]
    """
    spans = -(-windows[episodes] // most)
    span_episodes = np.repeat(episodes, spans)
    before = np.repeat(np.cumsum(spans) - spans, spans)
    first = (np.arange(len(span_episodes)) - before) * most
    return span_episodes, first, np.minimum(windows[span_episodes] - first, most)


def cut_shards(
    span_episodes: Int64s, first: Int64s, count: Int64s, shards: int
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Cut ordered spans into shards of equal windows, give or take one: spans cut anew, and where each shard begins.

    >>> columns = cut_shards(np.array([7, 3]), np.array([0, 4]), np.array([4, 2]), shards=2)
    >>> [column.tolist() for column in columns]
    [[7, 7, 3], [0, 3, 4], [3, 1, 2], [0, 1, 3]]
    """
    ends = np.cumsum(count)
    shard_ends = ends[-1] * np.arange(shards + 1) // shards
    cuts = np.unique(np.concatenate([ends, shard_ends]))  # where a span ends or a shard does
    starts = cuts[:-1]
    spans = np.searchsorted(ends, starts, side="right")
    new_first = first[spans] + starts - (ends[spans] - count[spans])
    return span_episodes[spans], new_first, np.diff(cuts), np.searchsorted(starts, shard_ends)
