from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.plan import SplitPlan, cut_shards, cut_spans, plan_splits, split_episodes, windows_per_span
from shards import EpisodeError, OptionError
from shards.windows import count_windows


def plan(steps: list[int] | np.ndarray, length: int = 4, shift: int = 2, **changes: Any) -> tuple[SplitPlan, ...]:
    """A plan of one split and one shard, unless asked for more."""
    fractions = changes.pop("fractions", {"train": "1"})
    shards = changes.pop("shards", 1)
    asked = {
        "fractions": fractions,
        "shard_counts": dict.fromkeys(fractions, shards),
        "shard_size": 2**20,
        "record_bytes": 100,
        "step_bytes": 4,
        "seed": 0,
    }
    return plan_splits(np.asarray(steps, np.int64), length=length, shift=shift, **asked | changes)


def windows_of(split: SplitPlan) -> Counter[tuple[int, int]]:
    """How often each (episode, window) is in a split."""
    spans = zip(split.span_episodes.tolist(), split.first.tolist(), split.count.tolist(), strict=True)
    return Counter((episode, i) for episode, first, count in spans for i in range(first, first + count))


def columns(split: SplitPlan) -> dict[str, Any]:
    """A split as literals."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(split).items()}


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
    length=st.integers(1, 12),
    shift=st.integers(1, 15),
    fractions=fractions(),
    shards=st.integers(1, 6),
    step_bytes=st.sampled_from([1, 4, 2**14, 2**21]),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_window_is_in_one_shard_of_one_split(
    steps: list[int], length: int, shift: int, fractions: dict[str, str], shards: int, step_bytes: int, seed: int
) -> None:
    windows = [count_windows(one, length, shift) for one in steps]
    assume(sum(count > 0 for count in windows) >= len(fractions))
    try:
        splits = plan(steps, length, shift, fractions=fractions, shards=shards, step_bytes=step_bytes, seed=seed)
    except OptionError:
        assume(False)

    found = sum((windows_of(split) for split in splits), Counter())
    assert found == Counter((episode, i) for episode, count in enumerate(windows) for i in range(count))
    for split in splits:
        assert {episode for episode, _ in windows_of(split)} == set(split.episodes.tolist())
        assert split.shards == shards
        sizes = split.shard_windows()
        assert sizes.min() >= 1
        assert sizes.max() - sizes.min() <= 1
        assert sizes.sum() == split.windows == windows_of(split).total()
        assert split.shard_spans[[0, -1]].tolist() == [0, len(split.count)]
        assert split.count.min() >= 1


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.integers(0, 2000), min_size=1, max_size=30),
    shards=st.integers(1, 8),
    step_bytes=st.sampled_from([1, 4, 2**12, 2**18]),
    seed=st.integers(0, 99),
)
def test_a_shard_holds_64_spans_or_a_span_for_each_window(
    steps: list[int], shards: int, step_bytes: int, seed: int
) -> None:
    assume(sum(count_windows(one, 4, 2) for one in steps) >= shards)

    (split,) = plan(steps, shards=shards, step_bytes=step_bytes, seed=seed)

    spans = np.diff(split.shard_spans)
    assert (spans >= np.minimum(split.shard_windows(), 64)).all()


def test_a_span_reads_about_a_mebibyte_where_shards_are_large() -> None:
    (split,) = plan([10_000_000] * 4, length=100, shift=10, step_bytes=64, shards=2)

    source = ((split.count - 1) * 10 + 100) * 64
    assert source.max() <= 2**20
    assert np.median(source) > 0.99 * 2**20


@settings(max_examples=100, deadline=None)
@given(steps=episode_steps, fractions=fractions(), seed=st.integers(0, 2**63 - 1))
def test_splits_part_the_usable_episodes_and_none_is_empty(
    steps: list[int], fractions: dict[str, str], seed: int
) -> None:
    windows = np.array(steps) // 10
    assume((windows > 0).sum() >= len(fractions))

    dealt = split_episodes(windows, fractions, seed)

    assert list(dealt) == list(fractions)
    assert sorted(np.concatenate(list(dealt.values())).tolist()) == np.flatnonzero(windows).tolist()
    for rows in dealt.values():
        assert len(rows) > 0
        assert rows.tolist() == sorted(rows.tolist())


@settings(max_examples=100, deadline=None)
@given(
    windows=st.lists(st.integers(10, 20), min_size=40, max_size=80),
    shares=st.sampled_from([("0.8", "0.1", "0.1"), ("0.5", "0.5"), ("0.25", "0.25", "0.25", "0.25"), ("0.9", "0.1")]),
    seed=st.integers(0, 2**63 - 1),
)
def test_splits_are_as_near_to_their_shares_as_whole_episodes_allow(
    windows: list[int], shares: tuple[str, ...], seed: int
) -> None:
    dealt = split_episodes(np.array(windows), {f"s{i}": share for i, share in enumerate(shares)}, seed)

    taken = [sum(windows[row] for row in rows) for rows in dealt.values()]
    off = [abs(got - Fraction(share) * sum(windows)) for got, share in zip(taken, shares, strict=True)]
    largest = max(range(len(shares)), key=lambda i: (Fraction(shares[i]), i))
    rest = off.pop(largest)
    assert all(one <= Fraction(max(windows), 2) for one in off)
    assert rest <= sum(off)  # the largest split takes what the others leave


@pytest.mark.parametrize(
    ("windows", "shares", "sizes"),
    [
        ([10] * 10, ("0.8", "0.1", "0.1"), [80, 10, 10]),
        ([10] * 10, ("0.1", "0.8", "0.1"), [10, 80, 10]),
        ([1000, 1, 1, 1, 1, 1, 1, 1, 1, 1], ("0.999", "0.001"), [1008, 1]),
        ([1000, 10, 10, 10], ("0.99", "0.01"), [1020, 10]),
        ([5, 5], ("0.999", "0.001"), [5, 5]),
    ],
)
def test_huge_episodes_do_not_upset_small_splits(windows: list[int], shares: tuple[str, ...], sizes: list[int]) -> None:
    for seed in range(20):
        dealt = split_episodes(np.array(windows), {f"s{i}": share for i, share in enumerate(shares)}, seed)
        assert [sum(windows[row] for row in rows) for rows in dealt.values()] == sizes


@pytest.mark.parametrize("huge", [0, 1, 2])
def test_no_split_is_empty_beside_one_huge_episode(huge: int) -> None:
    windows = np.ones(3, np.int64)
    windows[huge] = 1_000_000

    for seed in range(20):
        dealt = split_episodes(windows, {"train": "0.8", "validation": "0.1", "test": "0.1"}, seed)
        assert [len(rows) for rows in dealt.values()] == [1, 1, 1]


def test_a_plan_is_pinned() -> None:
    train, test = plan([10, 3, 24, 7, 16, 9], fractions={"train": "0.75", "test": "0.25"}, shards=2, seed=7)

    assert columns(train) == {
        "name": "train",
        "episodes": [0, 2, 4],
        "span_episodes": [2, 2, 0, 2, 0, 2, 4, 2, 4, 4, 4, 0, 4, 2, 2, 2, 2, 2, 4, 2, 0, 4],
        "first": [1, 9, 0, 8, 3, 10, 3, 5, 5, 0, 6, 2, 2, 0, 4, 3, 2, 6, 4, 7, 1, 1],
        "count": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "shard_spans": [0, 11, 22],
    }
    assert columns(test) == {
        "name": "test",
        "episodes": [3, 5],
        "span_episodes": [3, 3, 5, 5, 5],
        "first": [1, 0, 0, 2, 1],
        "count": [1, 1, 1, 1, 1],
        "shard_spans": [0, 2, 5],
    }


def test_the_split_of_each_of_many_episodes_is_pinned() -> None:
    dealt = split_episodes(np.arange(20), {"train": "0.8", "validation": "0.1", "test": "0.1"}, seed=3)

    assert {name: rows.tolist() for name, rows in dealt.items()} == {
        "train": [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 17, 19],
        "validation": [11, 13],
        "test": [1, 18],
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


def test_splits_do_not_depend_on_the_shards() -> None:
    steps = list(range(10, 60))
    halves = {"train": "0.5", "test": "0.5"}

    one, many = plan(steps, fractions=halves, shards=1), plan(steps, fractions=halves, shards=9)

    assert [split.episodes.tolist() for split in one] == [split.episodes.tolist() for split in many]


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

    assert split.shard_windows().tolist() == [1, 1, 1]


def test_shards_may_be_as_many_as_windows() -> None:
    (split,) = plan([9, 9], length=3, shift=3, shards=6)

    assert split.shard_windows().tolist() == [1] * 6
    with pytest.raises(OptionError, match="num_shards asks for 7 shards of split train, which has 6 windows"):
        plan([9, 9], length=3, shift=3, shards=7)


def test_episodes_that_are_too_short_or_too_few_are_told() -> None:
    with pytest.raises(EpisodeError, match="no episode is as long as one window, 4 steps: the longest has 3"):
        plan([0, 3, 2])
    with pytest.raises(EpisodeError, match=r"2 splits need as many episodes .*, but there are 1"):
        plan([0, 3, 20], fractions={"train": "0.5", "test": "0.5"})


@pytest.mark.parametrize(
    ("shard_windows", "length", "shift", "step_bytes", "most"),
    [
        (30_000, 1024, 256, 4, 468),  # so few that a shard holds 64 spans
        (10**9, 1024, 256, 4, 1021),  # so many that a span reads 1 MiB
        (10**9, 1, 1, 2**20, 1),
        (10**9, 100, 1, 2**20, 1),  # one window is more than 1 MiB
        (128, 8, 8, 4, 2),
        (127, 8, 8, 4, 1),
        (1, 8, 8, 4, 1),
    ],
)
def test_spans_are_large_reads_but_64_in_a_shard(
    shard_windows: int, length: int, shift: int, step_bytes: int, most: int
) -> None:
    assert windows_per_span(shard_windows, length, shift, step_bytes) == most


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
    windows = int(count_windows(steps, 64, 16).sum())

    train, test = plan(
        steps, length=64, shift=16, fractions={"train": "0.9", "test": "0.1"}, shards=500, record_bytes=1000
    )

    assert train.windows + test.windows == windows
    assert train.windows / windows == pytest.approx(0.9, abs=1e-5)
    assert np.ptp(train.shard_windows()) <= 1
    assert np.diff(train.shard_spans).min() >= 64
