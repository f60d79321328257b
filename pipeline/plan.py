"""The plan: which window goes into which shard. A pure function of episode lengths and options, in NumPy alone.

What is shuffled is this plan, never the data. The records of each section of an episode are cut into spans of
consecutive records; a keyed hash orders all spans of a split; the shards cut that order into equal pieces. A window is
thus in exactly one shard, and a shard's windows come from 64 places or more.

Every order comes from a keyed integer hash and a stable sort, not from a random generator whose stream could change:
the same input gives the same plan on any machine and NumPy version.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shards.errors import OptionError
from shards.keyed_hash import keyed_hash
from shards.windows import Int64s, WindowSpec

from .splits import Sections

SPANS_PER_SHARD = 64  # at least, where the data allow: a shard is then a fair sample of its split
SPAN_SOURCE_BYTES = 2**20  # about; an object store wants large reads


@dataclass(frozen=True)
class SplitPlan:
    """One split: its sections of episodes, and all its spans in the order in which they are written.

    Span j is the records [first[j], first[j] + count[j]) of episode span_episodes[j], which hold windows[j] windows.
    Spans are already cut where a shard ends: shard i holds the spans [shard_spans[i], shard_spans[i + 1]).
    """

    name: str
    sections: Sections
    span_episodes: Int64s
    first: Int64s
    count: Int64s
    windows: Int64s
    shard_spans: Int64s

    @property
    def shards(self) -> int:
        """How many shards."""
        return len(self.shard_spans) - 1

    def shard_sums(self, spans: Int64s) -> Int64s:
        """The sum of what each span has (`count`: records, `windows`), shard by shard."""
        sums = np.concatenate([[0], np.cumsum(spans)])
        return np.asarray(sums[self.shard_spans[1:]] - sums[self.shard_spans[:-1]])


def plan_splits(
    splits: Mapping[str, Sections],
    spec: WindowSpec,
    *,
    shard_counts: Mapping[str, int | None],
    shard_size: int,
    record_bytes: int,
    step_bytes: int,
    seed: int,
) -> tuple[SplitPlan, ...]:
    """Plan every split, from its sections of episodes.

    `shard_counts` gives the shards of a split, or None for as many as records of `record_bytes` fill shards of about
    `shard_size`; `step_bytes` are those of one step of the source.
    Errors: OptionError for more shards than records.
    """
    plans = []
    for number, (name, sections) in enumerate(splits.items()):
        windows = spec.count(sections.steps)
        records = spec.records(sections.steps)
        total = int(records.sum())
        shards = shard_counts.get(name) or min(total, -(-total * record_bytes // shard_size))
        if shards > total:
            held = "windows" if spec.per_record == 1 else f"records of {spec.per_record} windows"
            raise OptionError(f"num_shards asks for {shards} shards of split {name}, which has {total} {held}")
        most = records_per_span(total // shards, spec, step_bytes)
        section, first, count = cut_spans(np.arange(len(records)), records, most)
        order = np.argsort(keyed_hash(np.arange(len(count)), seed, 1, number), kind="stable")
        section, first, count, shard_spans = cut_shards(section[order], first[order], count[order], shards)
        begins = first * spec.per_record
        held_windows = np.minimum(begins + count * spec.per_record, windows[section]) - begins
        plans.append(SplitPlan(name, sections, sections.episodes[section], first, count, held_windows, shard_spans))
    return tuple(plans)


def best_per_record(
    splits: Iterable[Sections],
    spec: WindowSpec,
    record_bytes: Callable[[WindowSpec], int],
    most_bytes: int,
    least_records: Sequence[int] = (),
) -> int:
    """The `per_record` with which the dataset has the fewest bytes, in records of `most_bytes` at most.

    Each split must have its `least_records`; where it cannot, windows have a record each. Few windows a record store
    overlap again and again, many leave an episode's last record half empty. All of 1 to 32, and from there each that is
    1/16 more than the one before, are tried on the episodes there are.
    """
    counts = [spec.count(part.steps) for part in splits]
    windows, times = np.unique(np.concatenate(counts), return_counts=True)

    def fits(per_record: int) -> bool:
        return record_bytes(replace(spec, per_record=per_record)) <= most_bytes and all(
            int((-(-count // per_record)).sum()) >= least for count, least in zip(counts, least_records, strict=False)
        )

    candidates, candidate = [1], 2
    while candidate <= windows[-1] and fits(candidate):
        candidates.append(candidate)
        candidate += max(1, candidate // 16)
    if fits(int(windows[-1])):
        candidates.append(int(windows[-1]))

    def total(per_record: int) -> int:
        records = int((-(-windows // per_record) * times).sum())
        return records * record_bytes(replace(spec, per_record=per_record))

    return min(candidates, key=total)


def records_per_span(shard_records: int, spec: WindowSpec, step_bytes: int) -> int:
    """The most records a span may have, in shards of `shard_records` or one more.

    As many as read about SPAN_SOURCE_BYTES of the source, but so few that a shard holds SPANS_PER_SHARD spans.

    >>> records_per_span(30_000, WindowSpec(1024, shift=256), 4), records_per_span(10, WindowSpec(1024, shift=256), 4)
    (468, 1)
    >>> records_per_span(30_000, WindowSpec(16384, shift=4096), step_bytes=4)
    61
    """
    large_read = (SPAN_SOURCE_BYTES // step_bytes - spec.extent) // spec.shift + 1
    return max(1, min(large_read // spec.per_record, shard_records // SPANS_PER_SHARD))


def cut_spans(sections: Int64s, records: Int64s, most: int) -> tuple[Int64s, Int64s, Int64s]:
    """Cut the records of each section into spans of `most` and a last shorter one: (section, first, count) of each.

    >>> [column.tolist() for column in cut_spans(np.array([0, 2]), np.array([5, 9, 2]), most=2)]
    [[0, 0, 0, 2], [0, 2, 4, 0], [2, 2, 1, 2]]
    """
    spans = -(-records[sections] // most)
    span_sections = np.repeat(sections, spans)
    before = np.repeat(np.cumsum(spans) - spans, spans)
    first = (np.arange(len(span_sections)) - before) * most
    return span_sections, first, np.minimum(records[span_sections] - first, most)


def cut_shards(
    span_episodes: Int64s, first: Int64s, count: Int64s, shards: int
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Cut ordered spans into shards of equal count, give or take one: spans cut anew, and where each shard begins.

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
