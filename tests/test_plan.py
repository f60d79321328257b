from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.plan import SplitPlan, best_per_record, cut_shards, cut_spans, plan_splits, records_per_span
from pipeline.splits import Sections, split_by_fraction, split_by_time
from shards import Feature, OptionError
from shards.record import record_layout
from shards.windows import TAILS, Tail, WindowSpec


def plan(
    steps: list[int] | np.ndarray, length: int = 4, shift: int = 2, fractions: dict[str, str] | None = None, **more: Any
) -> tuple[SplitPlan, ...]:
    """A plan of one split and one shard, unless asked for more."""
    steps, spec = np.asarray(steps, np.int64), WindowSpec(length, shift)
    dealt = split_by_fraction(spec.count(steps), fractions or {"train": "1"}, more.get("seed", 0))
    return plan_sections({name: Sections(rows, 0 * rows, steps[rows]) for name, rows in dealt.items()}, spec, **more)


def plan_sections(
    splits: dict[str, Sections], spec: WindowSpec, shards: int | None = 1, **changes: Any
) -> tuple[SplitPlan, ...]:
    asked = {
        "shard_counts": dict.fromkeys(splits, shards),
        "shard_size": 2**20,
        "record_bytes": 100,
        "step_bytes": 4,
        "seed": 0,
    }
    return plan_splits(splits, spec, **asked | changes)


def whole(steps: list[int]) -> Sections:
    """Every episode whole, but those without a step."""
    rows = np.flatnonzero(steps)
    return Sections(rows, 0 * rows, np.asarray(steps, np.int64)[rows])


def records_of(split: SplitPlan) -> Counter[tuple[int, int]]:
    """How often each (episode, record) is in a split."""
    spans = zip(split.span_episodes.tolist(), split.first.tolist(), split.count.tolist(), strict=True)
    return Counter((episode, i) for episode, first, count in spans for i in range(first, first + count))


def columns(split: SplitPlan) -> dict[str, Any]:
    """A split as literals."""
    sections = {"episodes": split.sections.episodes, "begin": split.sections.begin, "steps": split.sections.steps}
    fields = {name: value for name, value in vars(split).items() if name != "sections"}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in (sections | fields).items()
    }


episode_steps = st.lists(st.integers(0, 150), min_size=1, max_size=25)


@st.composite
def fractions(draw: st.DrawFn, most: int = 3) -> dict[str, str]:
    """Up to three splits whose hundredths add up to 1."""
    names = ["train", "validation", "test"][: draw(st.integers(1, most))]
    cuts = sorted(draw(st.lists(st.integers(1, 99), min_size=len(names) - 1, max_size=len(names) - 1, unique=True)))
    return {
        name: f"{(end - begin) / 100:.2f}" for name, begin, end in zip(names, [0, *cuts], [*cuts, 100], strict=True)
    }


@settings(max_examples=150, deadline=None)
@given(
    steps=episode_steps,
    spec=st.builds(
        WindowSpec,
        st.integers(1, 12),
        st.integers(1, 15),
        st.integers(1, 3),
        st.sampled_from(TAILS),
        st.integers(1, 5),
    ),
    fractions=fractions(),
    by_time=st.booleans(),
    shards=st.integers(1, 6),
    step_bytes=st.sampled_from([1, 4, 2**14, 2**21]),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_window_is_in_one_shard_of_one_split(
    steps: list[int],
    spec: WindowSpec,
    fractions: dict[str, str],
    by_time: bool,
    shards: int,
    step_bytes: int,
    seed: int,
) -> None:
    windows = spec.count(np.array(steps))
    assume((windows > 0).sum() >= len(fractions))
    assume(not by_time or max(steps) >= len(fractions) * (spec.extent + 1))
    if by_time:
        sections = split_by_time(np.array(steps), spec, fractions, purge=1)
    else:
        dealt = split_by_fraction(windows, fractions, seed)
        sections = {name: Sections(rows, 0 * rows, np.array(steps)[rows]) for name, rows in dealt.items()}
    totals = {name: int((-(-spec.count(part.steps) // spec.per_record)).sum()) for name, part in sections.items()}
    assume(min(totals.values()) >= shards)

    splits = plan_sections(sections, spec, shards, step_bytes=step_bytes, seed=seed)

    assert [split.name for split in splits] == list(fractions)
    for split in splits:
        part = sections[split.name]
        held = dict(zip(part.episodes.tolist(), spec.count(part.steps).tolist(), strict=True))
        assert records_of(split) == Counter(
            (episode, i) for episode, count in held.items() for i in range(-(-count // spec.per_record))
        )
        assert split.shards == shards
        sizes = split.shard_sums(split.count)
        assert sizes.min() >= 1
        assert sizes.max() - sizes.min() <= 1
        assert sizes.sum() == totals[split.name]
        in_windows = split.shard_sums(split.windows)
        assert in_windows.sum() == sum(held.values())
        assert ((in_windows >= sizes) & (in_windows <= sizes * spec.per_record)).all()
        for episode, first, count, has in zip(
            split.span_episodes.tolist(),
            split.first.tolist(),
            split.count.tolist(),
            split.windows.tolist(),
            strict=True,
        ):
            assert has == min(held[episode], (first + count) * spec.per_record) - first * spec.per_record
        assert split.shard_spans[[0, -1]].tolist() == [0, len(split.count)]
        assert split.count.min() >= 1


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.integers(0, 2000), min_size=1, max_size=30),
    per_record=st.integers(1, 4),
    shards=st.integers(1, 8),
    step_bytes=st.sampled_from([1, 4, 2**12, 2**18]),
    seed=st.integers(0, 99),
)
def test_a_shard_holds_64_spans_or_a_span_for_each_record(
    steps: list[int], per_record: int, shards: int, step_bytes: int, seed: int
) -> None:
    spec = WindowSpec(4, 2, per_record=per_record)
    assume(int((-(-spec.count(np.array(steps)) // per_record)).sum()) >= shards)

    (split,) = plan_sections({"train": whole(steps)}, spec, shards, step_bytes=step_bytes, seed=seed)

    spans = np.diff(split.shard_spans)
    assert (spans >= np.minimum(split.shard_sums(split.count), 64)).all()


@pytest.mark.parametrize("per_record", [1, 8])
def test_a_span_reads_about_a_mebibyte_where_shards_are_large(per_record: int) -> None:
    spec = WindowSpec(100, 10, per_record=per_record)
    (split,) = plan_sections({"train": whole([10_000_000] * 4)}, spec, shards=2, step_bytes=64)

    source = ((split.count * per_record - 1) * 10 + 100) * 64
    assert source.max() <= 2**20
    assert np.median(source) > 0.99 * 2**20


def test_a_plan_is_pinned() -> None:
    sections = {
        "train": Sections(np.array([0, 2, 4]), np.zeros(3, np.int64), np.array([10, 24, 16])),
        "test": Sections(np.array([3, 5]), np.zeros(2, np.int64), np.array([7, 9])),
    }
    train, test = plan_sections(sections, WindowSpec(4, 2), shards=2, seed=7)

    assert columns(train) == {
        "name": "train",
        "episodes": [0, 2, 4],
        "begin": [0, 0, 0],
        "steps": [10, 24, 16],
        "span_episodes": [2, 2, 0, 2, 0, 2, 4, 2, 4, 4, 4, 0, 4, 2, 2, 2, 2, 2, 4, 2, 0, 4],
        "first": [1, 9, 0, 8, 3, 10, 3, 5, 5, 0, 6, 2, 2, 0, 4, 3, 2, 6, 4, 7, 1, 1],
        "count": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "windows": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "shard_spans": [0, 11, 22],
    }
    assert columns(test) == {
        "name": "test",
        "episodes": [3, 5],
        "begin": [0, 0],
        "steps": [7, 9],
        "span_episodes": [3, 3, 5, 5, 5],
        "first": [1, 0, 0, 2, 1],
        "count": [1, 1, 1, 1, 1],
        "windows": [1, 1, 1, 1, 1],
        "shard_spans": [0, 2, 5],
    }


def test_a_plan_of_sections_and_records_of_several_windows_is_pinned() -> None:
    sections = Sections(np.array([1, 4]), np.array([0, 10]), np.array([25, 9]))

    (split,) = plan_sections({"train": sections}, WindowSpec(4, 2, tail="pad", per_record=3), shards=2, seed=7)

    assert columns(split) == {
        "name": "train",
        "episodes": [1, 4],
        "begin": [0, 10],
        "steps": [25, 9],
        "span_episodes": [4, 1, 1, 1, 4, 1],
        "first": [1, 0, 3, 2, 0, 1],
        "count": [1, 1, 1, 1, 1, 1],
        "windows": [1, 3, 3, 3, 3, 3],
        "shard_spans": [0, 3, 6],
    }


def test_the_same_input_gives_the_same_plan_and_another_seed_another() -> None:
    steps = np.random.default_rng(0).integers(0, 100, 50)
    halves = {"train": "0.5", "test": "0.5"}

    first, again, other = (
        [columns(split) for split in plan(steps, fractions=halves, shards=3, seed=seed)] for seed in (5, 5, 6)
    )

    assert first == again
    assert first[0]["episodes"] != other[0]["episodes"]
    assert first[0]["first"] != other[0]["first"]


def test_the_windows_of_a_shard_come_from_all_over_the_split() -> None:
    (split,) = plan([1000] * 100, shards=10)

    for shard in range(10):
        episodes = split.span_episodes[split.shard_spans[shard] : split.shard_spans[shard + 1]]
        assert len(set(episodes.tolist())) > 40


@pytest.mark.parametrize(
    ("windows", "shard_size", "shards"),
    [(1000, 100_000, 1), (1000, 99_999, 2), (1000, 10_000, 10), (1000, 100, 1000), (1, 2**40, 1)],
)
def test_shards_are_as_many_as_their_size_asks_for(windows: int, shard_size: int, shards: int) -> None:
    (split,) = plan([windows], length=1, shift=1, shards=None, shard_size=shard_size, record_bytes=100)

    assert split.shards == shards


def test_a_window_larger_than_a_shard_should_be_has_a_shard_of_its_own() -> None:
    (split,) = plan([3], length=1, shift=1, shards=None, shard_size=10, record_bytes=100)

    assert split.shard_sums(split.windows).tolist() == [1, 1, 1]


def test_shards_may_be_as_many_as_windows() -> None:
    (split,) = plan([9, 9], length=3, shift=3, shards=6)

    assert split.shard_sums(split.windows).tolist() == [1] * 6
    with pytest.raises(OptionError, match="num_shards asks for 7 shards of split train, which has 6 windows"):
        plan([9, 9], length=3, shift=3, shards=7)


def test_shards_may_be_as_many_as_records_and_no_more() -> None:
    sections, spec = {"test": whole([9, 10])}, WindowSpec(3, 1, per_record=4)
    (split,) = plan_sections(sections, spec, shards=4)

    assert sorted(split.shard_sums(split.windows).tolist()) == [3, 4, 4, 4]
    with pytest.raises(OptionError, match="asks for 5 shards of split test, which has 4 records of 4 windows"):
        plan_sections(sections, spec, shards=5)


@pytest.mark.parametrize(
    ("shard_records", "length", "shift", "per_record", "step_bytes", "most"),
    [
        (30_000, 1024, 256, 1, 4, 468),  # so few that a shard holds 64 spans
        (10**9, 1024, 256, 1, 4, 1021),  # so many that a span reads 1 MiB
        (10**9, 1024, 256, 100, 4, 10),
        (10**9, 1024, 256, 2000, 4, 1),  # one record is more than 1 MiB
        (10**9, 1, 1, 1, 2**20, 1),
        (10**9, 100, 1, 1, 2**20, 1),  # one window is more than 1 MiB
        (128, 8, 8, 1, 4, 2),
        (127, 8, 8, 1, 4, 1),
        (1, 8, 8, 1, 4, 1),
    ],
)
def test_spans_are_large_reads_but_64_in_a_shard(
    shard_records: int, length: int, shift: int, per_record: int, step_bytes: int, most: int
) -> None:
    assert records_per_span(shard_records, WindowSpec(length, shift, per_record=per_record), step_bytes) == most


def test_episodes_are_cut_into_spans() -> None:
    spans = cut_spans(np.array([0, 2, 3]), np.array([5, 9, 2, 4]), most=2)

    assert [column.tolist() for column in spans] == [
        [0, 0, 0, 2, 3, 3],
        [0, 2, 4, 0, 0, 2],
        [2, 2, 1, 2, 2, 2],
    ]


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        (1, [[7, 3, 5], [0, 4, 9], [4, 2, 1], [0, 3]]),
        (2, [[7, 7, 3, 5], [0, 3, 4, 9], [3, 1, 2, 1], [0, 1, 4]]),
        (3, [[7, 7, 3, 5], [0, 2, 4, 9], [2, 2, 2, 1], [0, 1, 2, 4]]),
        (7, [[7, 7, 7, 7, 3, 3, 5], [0, 1, 2, 3, 4, 5, 9], [1] * 7, [0, 1, 2, 3, 4, 5, 6, 7]]),
    ],
)
def test_spans_are_cut_where_a_shard_ends(shards: int, expected: list[list[int]]) -> None:
    cut = cut_shards(np.array([7, 3, 5]), np.array([0, 4, 9]), np.array([4, 2, 1]), shards)

    assert [column.tolist() for column in cut] == expected


def test_200_000_episodes_are_planned() -> None:
    steps = np.random.default_rng(1).integers(0, 1000, 200_000)
    windows = int(WindowSpec(64, 16).count(steps).sum())

    train, test = plan(
        steps, length=64, shift=16, fractions={"train": "0.9", "test": "0.1"}, shards=500, record_bytes=1000
    )

    assert train.windows.sum() + test.windows.sum() == windows
    assert train.windows.sum() / windows == pytest.approx(0.9, abs=1e-5)
    assert np.ptp(train.shard_sums(train.windows)) <= 1
    assert np.diff(train.shard_spans).min() >= 64


# How many windows a record


@lru_cache
def bytes_of(spec: WindowSpec, per_record: int) -> int:
    changed = WindowSpec(spec.length, spec.shift, spec.stride, spec.tail, per_record)
    return record_layout((Feature("x", "float32", (spec.length, 3)), Feature("r", "int64", ())), changed).record_bytes


def total_of(parts: list[Sections], spec: WindowSpec, per_record: int) -> int:
    """The bytes of all records, counted one section after the other."""
    records = sum(-(-windows // per_record) for part in parts for windows in spec.count(part.steps).tolist())
    return records * bytes_of(spec, per_record)


CANDIDATES = [*range(1, 33)]
while CANDIDATES[-1] < 1000:
    CANDIDATES.append(CANDIDATES[-1] + CANDIDATES[-1] // 16)


def best_of(parts: list[Sections], spec: WindowSpec, most_bytes: int = 2**28) -> int:
    return best_per_record(parts, spec, lambda window: bytes_of(spec, window.per_record), most_bytes)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=5), min_size=1, max_size=3),
    length=st.integers(1, 40),
    shift=st.integers(1, 12),
    stride=st.integers(1, 2),
    tail=st.sampled_from(TAILS),
    most_bytes=st.sampled_from([1, 1000, 4000, 2**28]),
)
def test_the_best_records_make_the_smallest_dataset(
    steps: list[list[int]], length: int, shift: int, stride: int, tail: Tail, most_bytes: int
) -> None:
    spec = WindowSpec(length, shift, stride, tail)
    parts = [whole(some) for some in steps]
    most = max(int(spec.count(part.steps).max()) for part in parts)
    assume(most)

    best = best_of(parts, spec, most_bytes)

    allowed = [k for k in {*CANDIDATES, most} if k <= most and (k == 1 or bytes_of(spec, k) <= most_bytes)]
    assert best in allowed
    assert total_of(parts, spec, best) == min(total_of(parts, spec, k) for k in allowed)
    every = [total_of(parts, spec, k) for k in range(1, most + 1) if k == 1 or bytes_of(spec, k) <= most_bytes]
    assert total_of(parts, spec, best) <= 1.2 * min(every)


@pytest.mark.parametrize(
    ("steps", "length", "shift", "best"),
    [
        ([1000] * 9, 16, 16, 62),  # without overlap only the bytes around the data are saved
        ([16, 17], 16, 1, 2),
        ([16] * 9, 16, 1, 1),
        ([17] + [16] * 9, 16, 1, 1),
        ([100], 10, 1, 91),  # one episode, one record
        ([100, 10], 10, 1, 46),
    ],
)
def test_the_best_records_are_pinned(steps: list[int], length: int, shift: int, best: int) -> None:
    assert best_of([whole(steps)], WindowSpec(length, shift)) == best


def test_of_equal_numbers_the_smallest_is_the_best() -> None:
    assert best_per_record([whole([8, 8])], WindowSpec(1, 1), lambda window: window.per_record, 2**20) == 1
