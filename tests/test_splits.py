from collections import Counter
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pipeline.splits import (
    Sections,
    check_groups,
    group_names,
    split_by_fraction,
    split_by_hash,
    split_by_name,
    split_by_time,
)
from shards import EpisodeError, OptionError
from shards.keyed_hash import keyed_hash
from shards.windows import TAILS, Tail, WindowSpec

EIGHTY = {"train": "0.8", "validation": "0.1", "test": "0.1"}
HALVES = {"train": "0.5", "test": "0.5"}
seeds = st.integers(0, 2**63 - 1)


@st.composite
def fractions(draw: st.DrawFn, least: int = 1, most: int = 3) -> dict[str, str]:
    """Some splits whose hundredths add up to 1."""
    names = ["train", "validation", "test", "extra"][: draw(st.integers(least, most))]
    cuts = sorted(draw(st.lists(st.integers(1, 99), min_size=len(names) - 1, max_size=len(names) - 1, unique=True)))
    return {
        name: f"{(end - begin) / 100:.2f}" for name, (begin, end) in zip(names, pairwise([0, *cuts, 100]), strict=True)
    }


def rows(splits: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Splits as literals."""
    return {name: has.tolist() for name, has in splits.items()}


def literals(splits: dict[str, Sections]) -> dict[str, list[tuple[int, ...]]]:
    """The (episode, begin, steps) of every section."""
    return {
        name: list(zip(split.episodes.tolist(), split.begin.tolist(), split.steps.tolist(), strict=True))
        for name, split in splits.items()
    }


def deviation(sizes: list[int], split_of: tuple[int, ...] | list[int], shares: dict[str, str]) -> Fraction:
    """How far all splits together are from their shares."""
    taken = Counter[int]()
    for size, split in zip(sizes, split_of, strict=True):
        taken[split] += size
    return sum((abs(taken[i] - Fraction(share) * sum(sizes)) for i, share in enumerate(shares.values())), Fraction())


def best_deviation(sizes: list[int], shares: dict[str, str]) -> Fraction:
    """The least deviation there is, of all ways to deal units to splits that leave none empty."""
    every = product(range(len(shares)), repeat=len(sizes))
    return min(deviation(sizes, split_of, shares) for split_of in every if len(set(split_of)) == len(shares))


def split_of_groups(dealt: dict[str, np.ndarray], groups: list[int]) -> dict[int, int]:
    """The split of each group, which must be one."""
    found = {(groups[row], i) for i, has in enumerate(dealt.values()) for row in has.tolist()}
    assert len({group for group, _ in found}) == len(found)
    return dict(sorted(found))


# By fraction


def test_the_split_of_each_of_many_episodes_is_pinned() -> None:
    assert rows(split_by_fraction(np.arange(20), EIGHTY, seed=3)) == {
        "train": [2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 19],
        "validation": [6, 13],
        "test": [1, 18],
    }
    assert rows(split_by_fraction(np.array([4, 0, 11, 2, 7, 3]), {"train": "0.75", "test": "0.25"}, seed=7)) == {
        "train": [2, 3, 4],
        "test": [0, 5],
    }


def test_the_split_of_each_of_many_groups_is_pinned() -> None:
    groups = np.array([5, 5, 2, 2, 2, 9, 9, 0, 1, 1, 7, 7])

    assert rows(split_by_fraction(np.arange(12), {"train": "0.6", "test": "0.4"}, 1, groups)) == {
        "train": [1, 8, 9, 10, 11],
        "test": [2, 3, 4, 5, 6, 7],
    }


@settings(max_examples=100, deadline=None)
@given(windows=st.lists(st.integers(0, 15), min_size=1, max_size=25), shares=fractions(), seed=seeds)
def test_splits_part_the_usable_episodes_and_none_is_empty(
    windows: list[int], shares: dict[str, str], seed: int
) -> None:
    assume(np.count_nonzero(windows) >= len(shares))

    dealt = split_by_fraction(np.array(windows), shares, seed)

    assert list(dealt) == list(shares)
    assert sorted(np.concatenate(list(dealt.values())).tolist()) == np.flatnonzero(windows).tolist()
    for has in dealt.values():
        assert len(has) > 0
        assert has.dtype == np.int64
        assert has.tolist() == sorted(has.tolist())


@settings(max_examples=100, deadline=None)
@given(
    windows=st.lists(st.integers(10, 20), min_size=40, max_size=80),
    shares=st.sampled_from([("0.8", "0.1", "0.1"), ("0.5", "0.5"), ("0.25", "0.25", "0.25", "0.25"), ("0.9", "0.1")]),
    seed=seeds,
)
def test_splits_are_as_near_to_their_shares_as_whole_episodes_allow(
    windows: list[int], shares: tuple[str, ...], seed: int
) -> None:
    dealt = split_by_fraction(np.array(windows), {f"s{i}": share for i, share in enumerate(shares)}, seed)

    taken = [sum(windows[row] for row in has) for has in dealt.values()]
    off = [abs(got - Fraction(share) * sum(windows)) for got, share in zip(taken, shares, strict=True)]
    largest = max(range(len(shares)), key=lambda i: (Fraction(shares[i]), i))
    rest = off.pop(largest)
    assert all(one <= Fraction(max(windows), 2) for one in off)
    assert rest <= sum(off)  # the largest split takes what the others leave


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("windows", "shares", "sizes"),
    [
        ([10] * 10, ("0.8", "0.1", "0.1"), [80, 10, 10]),
        ([10] * 10, ("0.1", "0.8", "0.1"), [10, 80, 10]),
        ([1000, 1, 1, 1, 1, 1, 1, 1, 1, 1], ("0.999", "0.001"), [1008, 1]),
        ([1000, 10, 10, 10], ("0.99", "0.01"), [1020, 10]),
        ([5, 5], ("0.999", "0.001"), [5, 5]),
        ([1_000_000, 1, 1], ("0.8", "0.1", "0.1"), [1_000_000, 1, 1]),
        ([1, 1_000_000, 1], ("0.8", "0.1", "0.1"), [1_000_000, 1, 1]),
        ([1, 1, 1_000_000], ("0.8", "0.1", "0.1"), [1_000_000, 1, 1]),
    ],
)
def test_huge_units_do_not_upset_small_splits(
    windows: list[int], shares: tuple[str, ...], sizes: list[int], grouped: bool
) -> None:
    for seed in range(20):
        dealt = split_by_fraction(
            np.array(windows),
            {f"s{i}": share for i, share in enumerate(shares)},
            seed,
            np.arange(len(windows)) if grouped else None,
        )
        assert [sum(windows[row] for row in has) for has in dealt.values()] == sizes


@settings(max_examples=150, deadline=None)
@given(
    episodes=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 12)), min_size=1, max_size=40),
    shares=fractions(),
    seed=seeds,
)
def test_groups_stay_together(episodes: list[tuple[int, int]], shares: dict[str, str], seed: int) -> None:
    windows, groups = map(list, zip(*episodes, strict=True))
    assume(len({group for count, group in episodes if count}) >= len(shares))

    dealt = split_by_fraction(np.array(windows), shares, seed, np.array(groups))

    assert sorted(np.concatenate(list(dealt.values())).tolist()) == np.flatnonzero(windows).tolist()
    assert set(split_of_groups(dealt, groups).values()) == set(range(len(shares)))  # and none is empty
    for has in dealt.values():
        assert has.tolist() == sorted(has.tolist())


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=7),
    shares=fractions(least=2),
    seed=st.integers(0, 1000),
    grouped=st.booleans(),
)
def test_no_move_or_swap_of_units_comes_nearer_to_the_shares(
    sizes: list[int], shares: dict[str, str], seed: int, grouped: bool
) -> None:
    assume(len(sizes) >= len(shares))
    sizes = [100 * size for size in sizes]  # the shares are then whole windows

    dealt = split_of_groups(
        split_by_fraction(np.array(sizes), shares, seed, np.arange(len(sizes)) if grouped else None),
        [*range(len(sizes))],
    )

    split_of = list(dealt.values())
    got = deviation(sizes, split_of, shares)
    for unit, other in product(range(len(sizes)), repeat=2):
        swapped, moved = split_of.copy(), split_of.copy()
        swapped[unit], swapped[other] = split_of[other], split_of[unit]
        moved[unit] = split_of[other]
        assert got <= deviation(sizes, swapped, shares)
        assert got <= deviation(sizes, moved, shares) or len(set(moved)) < len(shares)
    if len(shares) == 2:
        assert got <= max(max(sizes), best_deviation(sizes, shares))


@pytest.mark.parametrize("grouped", [False, True], ids=["episodes", "groups"])
def test_a_few_uneven_units_come_near_to_the_best_there_is(grouped: bool) -> None:
    shares = {"train": "0.6", "validation": "0.2", "test": "0.2"}
    found = best = Fraction()
    for seed, sizes in enumerate(np.random.default_rng(0).integers(100, 1000, (15, 7))):
        groups = np.arange(len(sizes))
        dealt = split_by_fraction(sizes, shares, seed, groups if grouped else None)
        split_of = list(split_of_groups(dealt, groups.tolist()).values())
        found += deviation(sizes.tolist(), split_of, shares) / int(sizes.sum())
        best += best_deviation(sizes.tolist(), shares) / int(sizes.sum())

    assert found < 2 * best


def test_many_groups_are_dealt_as_episodes_are() -> None:
    windows = np.random.default_rng(0).integers(1, 50, 2000)

    assert rows(split_by_fraction(windows, EIGHTY, 4, np.arange(2000))) == rows(split_by_fraction(windows, EIGHTY, 4))


def test_shares_of_groups_with_many_decimals_are_dealt() -> None:
    shares = {"train": "0." + "9" * 99, "test": "0." + "0" * 98 + "1"}

    dealt = split_by_fraction(np.array([2**40, 2**50, 2**60, 3]), shares, 0, np.array([4, 3, 2, 1]))

    assert rows(dealt) == {"train": [0, 1, 2], "test": [3]}


def test_too_few_units_for_the_splits_are_told() -> None:
    with pytest.raises(EpisodeError, match="3 splits need as many episodes that have a window, but there are 2; add"):
        split_by_fraction(np.array([5, 0, 6]), EIGHTY, 0)
    with pytest.raises(EpisodeError, match=r"3 splits need as many groups of episodes .*, but there are 2; add"):
        split_by_fraction(np.array([5, 1, 6, 0]), EIGHTY, 0, np.array([0, 1, 0, 2]))
    with pytest.raises(EpisodeError, match=r"1 splits need .*, but there are 0"):
        split_by_fraction(np.zeros(3, np.int64), {"train": "1"}, 0)


# By hash


def test_the_split_of_hashed_keys_is_pinned() -> None:
    keys = [f"e{i:03d}.npy" for i in range(20)]

    assert rows(split_by_hash(np.ones(20, np.int64), keys, EIGHTY, seed=1)) == {
        "train": [0, 1, 2, 4, 7, 8, 9, 11, 13, 14, 15, 16, 17, 19],
        "validation": [18],
        "test": [3, 5, 6, 10, 12],
    }


@settings(max_examples=100, deadline=None)
@given(
    keys=st.lists(st.text(max_size=9), min_size=1, max_size=40),
    more=st.lists(st.text(max_size=9), max_size=20),
    shares=fractions(),
    seed=seeds,
)
def test_more_episodes_move_none_to_another_split(
    keys: list[str], more: list[str], shares: dict[str, str], seed: int
) -> None:
    before, after = np.ones(len(keys), np.int64), np.ones(len(keys + more), np.int64)
    before[::5] = 0
    try:
        old, new = split_by_hash(before, keys, shares, seed), split_by_hash(after, keys + more, shares, seed)
    except EpisodeError:
        assume(False)

    assert sorted(np.concatenate(list(old.values())).tolist()) == np.flatnonzero(before).tolist()
    split_of = {key: name for name, has in new.items() for key in np.array(keys + more, object)[has]}
    for name, has in old.items():
        assert has.tolist() == sorted(has.tolist())
        assert all(split_of[keys[row]] == name for row in has.tolist())


def test_a_key_is_compared_with_the_fractions_as_its_hash_says() -> None:
    keys = [f"päth/{i}" for i in range(500)] + ["surrogate\udcff"]
    split = split_by_hash(np.ones(501, np.int64), keys, EIGHTY, seed=9)

    for row, key in enumerate(keys):
        number = int.from_bytes(sha256(key.encode(errors="surrogateescape")).digest()[:8], "little")
        place = Fraction(int(keyed_hash(np.array([number], np.uint64), 9, 2)[0]), 2**64)
        name = "train" if place < Fraction("0.8") else "validation" if place < Fraction("0.9") else "test"
        assert row in split[name]


def test_hashed_splits_have_about_their_fractions_and_a_seed_of_their_own() -> None:
    keys = [str(i) for i in range(50_000)]
    ones = np.ones(50_000, np.int64)

    split, other = (split_by_hash(ones, keys, EIGHTY, seed) for seed in (0, 1))

    assert [len(has) / 50_000 for has in split.values()] == pytest.approx([0.8, 0.1, 0.1], abs=0.005)
    assert len(np.intersect1d(split["train"], other["train"])) / 50_000 == pytest.approx(0.64, abs=0.01)


def test_one_split_has_every_hashed_key() -> None:
    assert rows(split_by_hash(np.array([1, 0, 2]), ["a", "b", "c"], {"train": "1"}, 0)) == {"train": [0, 2]}


def test_a_split_that_no_hash_falls_into_is_told() -> None:
    shares = {"train": "0." + "9" * 60, "test": "0." + "0" * 59 + "1"}

    with pytest.raises(EpisodeError, match=r"split test is empty: .* none of the 2 episodes .* 0\.0+1; add episodes, "):
        split_by_hash(np.array([1, 0, 2]), ["a", "b", "c"], shares, 0)


# By name


@pytest.mark.parametrize(
    ("windows", "names", "order", "expected"),
    [
        ([1, 1, 1], ["test", "train", "test"], None, {"train": [1], "test": [0, 2]}),
        ([1, 0, 1], ["a", "a", "b"], None, {"a": [0], "b": [2]}),
        ([1, 1, 1], ["b", "", "a"], None, {"a": [2], "b": [0]}),
        (
            [1] * 7,
            ["zoo", "test", "dev", "val", "validation", "train", "art"],
            None,
            {"train": [5], "validation": [4], "val": [3], "dev": [2], "test": [1], "art": [6], "zoo": [0]},
        ),
        ([1, 1, 1], ["train", "c", "b"], ["c", "absent", "train"], {"c": [1], "train": [0], "b": [2]}),
    ],
)
def test_episodes_go_to_the_splits_they_are_named_for(
    windows: list[int], names: list[str], order: list[str] | None, expected: dict[str, list[int]]
) -> None:
    split = rows(split_by_name(np.array(windows), names, order))

    assert split == expected
    assert list(split) == list(expected)


@pytest.mark.parametrize("name", ["Train", "all", "te-st", " train", "1st"])
def test_a_name_that_no_split_can_have_is_told(name: str) -> None:
    with pytest.raises(EpisodeError, match=f"episode 1 is put into split '{name}'; its name must be a lower-case"):
        split_by_name(np.array([1, 0, 1]), ["train", name, "train"])


def test_a_named_split_without_windows_is_told() -> None:
    with pytest.raises(EpisodeError, match="split test has no window: all 2 episodes put into it are too short"):
        split_by_name(np.array([1, 0, 0]), ["train", "test", "test"])
    with pytest.raises(EpisodeError, match="no episode is put into a split"):
        split_by_name(np.array([1, 1]), ["", ""])


# By time


@pytest.mark.parametrize(
    ("steps", "spec", "shares", "purge", "expected"),
    [
        ([10], WindowSpec(1, 1), HALVES, 0, {"train": [(0, 0, 5)], "test": [(0, 5, 5)]}),
        ([10], WindowSpec(1, 1), HALVES, 3, {"train": [(0, 0, 4)], "test": [(0, 7, 3)]}),
        ([0, 3, 23], WindowSpec(4, 2), HALVES, 1, {"train": [(2, 0, 12)], "test": [(2, 13, 10)]}),
        # The first is too short to be cut: train, which has more to get, takes it, and test is paid back.
        ([7, 23], WindowSpec(4, 2), HALVES, 0, {"train": [(0, 0, 7), (1, 0, 10)], "test": [(1, 10, 13)]}),
        # None can be cut: each goes to the split that then lacks most.
        (
            [5] * 5,
            WindowSpec(4, 1),
            {"a": "0.6", "b": "0.4"},
            0,
            {"a": [(0, 0, 5), (2, 0, 5), (4, 0, 5)], "b": [(1, 0, 5), (3, 0, 5)]},
        ),
        # Of five windows each, validation and test are due half a window: they take turns.
        (
            [11] * 3,
            WindowSpec(2, 2),
            EIGHTY,
            0,
            {
                "train": [(0, 0, 8), (1, 0, 8), (2, 0, 8)],
                "validation": [(0, 8, 3), (2, 8, 3)],
                "test": [(1, 8, 3)],
            },
        ),
        # Windows of five steps in all; the step left over is the last split's.
        ([17], WindowSpec(3, 3, stride=2), HALVES, 0, {"train": [(0, 0, 8)], "test": [(0, 8, 9)]}),
        ([17], WindowSpec(3, 3, stride=2, tail="pad"), HALVES, 0, {"train": [(0, 0, 8)], "test": [(0, 8, 9)]}),
        # A padded window is a window: these are dealt whole.
        ([2, 1, 0, 3], WindowSpec(4, 2, tail="pad"), HALVES, 5, {"train": [(0, 0, 2), (3, 0, 3)], "test": [(1, 0, 1)]}),
        # The padded window of the first, test's fourth, counts: of the second, train gets one more.
        (
            [17, 17],
            WindowSpec(4, 2, tail="pad"),
            HALVES,
            0,
            {"train": [(0, 0, 8), (1, 0, 10)], "test": [(0, 8, 9), (1, 10, 7)]},
        ),
        # Windows far apart: the six of two sections are one more than would fit without the cut.
        ([100], WindowSpec(5, 20), HALVES, 0, {"train": [(0, 0, 45)], "test": [(0, 45, 55)]}),
    ],
)
def test_episodes_are_cut_along_time(
    steps: list[int],
    spec: WindowSpec,
    shares: dict[str, str],
    purge: int,
    expected: dict[str, list[tuple[int, int, int]]],
) -> None:
    assert literals(split_by_time(np.array(steps), spec, shares, purge)) == expected


@st.composite
def specs(draw: st.DrawFn, tails: tuple[Tail, ...] = TAILS) -> WindowSpec:
    return WindowSpec(
        draw(st.integers(1, 9)), draw(st.integers(1, 15)), draw(st.integers(1, 3)), draw(st.sampled_from(tails))
    )


steps_of_episodes = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2000)), min_size=1, max_size=25)


@settings(max_examples=300, deadline=None)
@given(steps=steps_of_episodes, spec=specs(), shares=fractions(most=4), purge=st.sampled_from([0, 0, 1, 7, 100]))
def test_sections_are_disjoint_and_lose_nothing_but_the_purge(
    steps: list[int], spec: WindowSpec, shares: dict[str, str], purge: int
) -> None:
    try:
        cut = literals(split_by_time(np.array(steps), spec, shares, purge))
    except EpisodeError:
        assume(False)

    assert list(cut) == list(shares)
    sections: dict[int, list[tuple[int, int]]] = {}
    for split in cut.values():
        assert split
        assert [row for row, _, _ in split] == sorted({row for row, _, _ in split})
        for row, begin, length in split:
            assert spec.count(length) > 0
            sections.setdefault(row, []).append((begin, length))  # in the order of the splits
    assert sorted(sections) == [row for row, length in enumerate(steps) if spec.count(length)]
    for row, parts in sections.items():
        assert parts[0][0] == 0
        assert sum(parts[-1]) == steps[row]
        for (begin, length), (following, _) in pairwise(parts):
            assert following - (begin + length) == purge
            assert (length - spec.extent) % spec.shift == 0  # it ends where its last window does


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    spec=specs(tails=("drop",)),
    shares=fractions(),
    purge=st.integers(0, 5),
)
def test_no_cut_into_as_many_sections_holds_more_windows(
    steps: list[int], spec: WindowSpec, shares: dict[str, str], purge: int
) -> None:
    @lru_cache(None)
    def most(length: int, sections: int) -> int:
        """The most windows of all ways to cut, each section with one at least."""
        if sections == 1:
            found = sum(start + spec.extent <= length for start in range(0, max(length, 0), spec.shift))
            return found or -1000
        if length < 0:
            return -1000
        return max(most(one, 1) + most(length - one - purge, sections - 1) for one in range(length + 1))

    try:
        cut = literals(split_by_time(np.array(steps), spec, shares, purge))
    except EpisodeError:
        assume(False)

    lengths = {
        row: [length for split in cut.values() for one, _, length in split if one == row] for row in range(len(steps))
    }
    for row, parts in lengths.items():
        if parts:
            assert sum(most(length, 1) for length in parts) == most(steps[row], len(parts))


@settings(max_examples=300, deadline=None)
@given(steps=steps_of_episodes, spec=specs(), shares=fractions(most=4), purge=st.sampled_from([0, 0, 1, 7, 100]))
@example(steps=[30] * 25, spec=WindowSpec(5, 5, tail="pad"), shares=EIGHTY, purge=0)
def test_sections_have_the_shares_of_the_windows(
    steps: list[int], spec: WindowSpec, shares: dict[str, str], purge: int
) -> None:
    try:
        cut = split_by_time(np.array(steps), spec, shares, purge)
    except EpisodeError:
        assume(False)

    windows = np.array([np.bincount(s.episodes, spec.count(s.steps), len(steps)) for s in cut.values()]).astype(int)
    uncut = windows.sum(axis=0)[(windows == 0).any(axis=0)].max(initial=0)
    for share, got in zip(shares.values(), windows.sum(axis=1), strict=True):
        # Whole numbers, tails and a section forced put a split a few windows off; an uncut episode all of its own.
        assert abs(got - Fraction(share) * int(windows.sum())) <= (len(shares) - 1) * uncut + 2 * len(shares)


def test_every_split_has_a_section_of_the_longest_episode_if_it_must() -> None:
    shares = {"train": "0.98", "validation": "0.01", "test": "0.01"}

    cut = literals(split_by_time(np.array([9, 40, 9]), WindowSpec(4, 2), shares, purge=1))

    assert cut == {
        "train": [(0, 0, 9), (1, 0, 30), (2, 0, 9)],
        "validation": [(1, 31, 4)],
        "test": [(1, 36, 4)],
    }


def test_splits_that_no_episode_is_long_enough_for_are_told() -> None:
    with pytest.raises(
        EpisodeError,
        match=r"split test gets no window: to cut one episode for 2 splits takes 11 steps, a window of 4 for each and "
        r"3 purged between two, but the longest has 10; split by fractions of whole episodes instead, or",
    ):
        split_by_time(np.array([10, 0]), WindowSpec(4, 2), HALVES, purge=3)
    with pytest.raises(EpisodeError, match="the longest has 0"):
        split_by_time(np.zeros(0, np.int64), WindowSpec(4, 2), {"train": "1"}, purge=0)


def test_100_000_episodes_are_cut_along_time() -> None:
    steps = np.random.default_rng(0).integers(0, 600, 100_000)
    spec = WindowSpec(64, 16)

    cut = split_by_time(steps, spec, EIGHTY, purge=10)

    windows = [int(spec.count(split.steps).sum()) for split in cut.values()]
    assert np.divide(windows, sum(windows)) == pytest.approx([0.8, 0.1, 0.1], abs=1e-5)
    assert {split.begin.dtype for split in cut.values()} == {np.dtype(np.int64)}


def test_the_same_input_gives_the_same_splits_and_another_seed_others() -> None:
    windows = np.random.default_rng(0).integers(0, 100, 60)
    groups, keys = np.arange(60) // 3, [str(i) for i in range(60)]

    for split in (
        lambda seed: rows(split_by_fraction(windows, HALVES, seed)),
        lambda seed: rows(split_by_fraction(windows, HALVES, seed, groups)),
        lambda seed: rows(split_by_hash(windows, keys, HALVES, seed)),
    ):
        assert split(5) == split(5)
        assert split(5) != split(6)
    first, again = (literals(split_by_time(windows, WindowSpec(4, 2), HALVES, 1)) for _ in range(2))
    assert first == again


# Groups


def test_groups_in_one_split_each_are_fine() -> None:
    check_groups(["a", "b", "a", "c"], {"train": np.array([0, 2]), "test": np.array([1])}, "abcd")


def test_groups_in_several_splits_are_told() -> None:
    torn = ["b", "a", "b", "a", "c"]
    with pytest.raises(EpisodeError) as caught:
        check_groups(torn, {"train": np.array([0, 1, 4]), "test": np.array([2]), "val": np.array([3])}, "pqrst")
    assert str(caught.value) == (
        "2 groups of episodes are in more than one split by the splits that were given, but --group_by keeps a group "
        "together:\n  'a' is in train (q) and val (s)\n  'b' is in train (p) and test "
        "(r)\nGive all episodes of a group the same split, or leave out --group_by."
    )

    many = [f"g{i}" for i in range(7)] * 2
    with pytest.raises(EpisodeError, match=r"^7 groups (.|\n)*'g4' (.|\n)*\n  and 2 more\nGive all") as caught:
        check_groups(many, {"train": np.arange(7), "test": np.arange(7, 14)}, [str(i) for i in range(14)])
    assert "'g5'" not in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "pattern", "groups"),
    [
        (["s1/a.npy", "s2/b.npy", "s1/c.npy"], "^[^/]+", ["s1", "s2", "s1"]),
        (["s1/a.npy", "s2/b.npy"], "s([0-9])/", ["1", "2"]),
        (["s1_x.npy"], "s([0-9])_([a-z])", ["1"]),
        (["s1_x.npy"], "(?:s)[0-9]", ["s1"]),
        (["s1_x.npy"], "(?P<who>s[0-9])", ["s1"]),
        ([], "x", []),
    ],
)
def test_groups_are_found_in_paths(paths: list[str], pattern: str, groups: list[str]) -> None:
    assert group_names(paths, pattern) == groups


@pytest.mark.parametrize("pattern", ["s([0-9])", "s[0-9]", "s([0-9])|x", "s([0-9])|x()", "s([0-9]*)|x", "(?:s[0-9])?"])
def test_paths_without_a_group_are_told(pattern: str) -> None:
    with pytest.raises(EpisodeError) as caught:
        group_names(["s1", *(f"x{i}" for i in range(7))], pattern)

    assert str(caught.value) == (
        f"group_by {pattern!r} finds no group, or an empty one, in the paths of 7 of 8 episodes:\n"
        "  x0\n  x1\n  x2\n  x3\n  x4\n  and 2 more\n"
        "Give an expression that finds one in every path, or leave those episodes out."
    )


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "*"])
def test_an_invalid_expression_is_told(pattern: str) -> None:
    with pytest.raises(OptionError, match=r"^group_by '.+' is no regular expression: .+"):
        group_names(["a"], pattern)
