"""The epoch order: every window once, new each epoch, the same for any way of asking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader.order import MAX_POOL_WINDOWS, FixedOrder, ShuffledOrder, permute
from shards.keyed_hash import keyed_hash


def positions_of(order: ShuffledOrder, epoch: int, begin: int, end: int) -> list[tuple[int, int]]:
    pieces, rows = order.at(epoch, np.arange(begin, end))
    return list(zip(pieces.tolist(), rows.tolist(), strict=True))


@given(
    st.integers(1, 5000) | st.integers(2**16 + 1, 2**16 + 500),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3),
)
def test_a_permutation_sends_a_range_onto_itself(size: int, key: list[int]) -> None:
    sent = permute(np.arange(size), size, *key)
    assert np.array_equal(np.sort(sent), np.arange(size))


def test_the_largest_permutation_stays_within_its_size() -> None:
    last = np.arange(MAX_POOL_WINDOWS - 100_000, MAX_POOL_WINDOWS)
    sent = permute(last, MAX_POOL_WINDOWS, 1)
    assert len(np.unique(sent)) == 100_000
    assert sent.max() < MAX_POOL_WINDOWS


def test_permutations_are_pinned() -> None:
    assert permute(np.arange(8), 8, 0).tolist() == [1, 4, 5, 7, 6, 0, 3, 2]
    assert permute(np.arange(3), 1_000_000, 2026, 12).tolist() == [708771, 473343, 628153]


def test_a_permutation_of_five_is_each_of_the_120_about_equally_often() -> None:
    tries = 12_000
    seen = [tuple(permute(np.arange(5), 5, key).tolist()) for key in range(tries)]
    counts = np.unique(np.array(seen), axis=0, return_counts=True)[1]
    assert len(counts) == 120
    chi_square = float(((counts - tries / 120) ** 2 / (tries / 120)).sum())
    assert chi_square < 200  # 119 degrees of freedom: mean 119, deviation 15.4


def test_a_large_permutation_scatters_neighbours_evenly() -> None:
    size, bins = 100_003, 64
    statistics = []
    for key in range(20):
        sent = permute(np.arange(size), size, key)
        batches = (sent[: size // 256 * 256].reshape(-1, 256) * bins) // size
        counts = np.stack([(batches == i).sum(axis=1) for i in range(bins)], axis=1)
        statistics.append(((counts - 256 / bins) ** 2 / (256 / bins)).sum(axis=1).mean() / (bins - 1))
    assert np.mean(statistics) == pytest.approx(1 - 256 / size, abs=0.02)  # as of draws without replacement


shards_of = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@given(shards_of, st.integers(0, 2**63 - 1), st.integers(1, 15), st.integers(0, 3))
def test_an_epoch_holds_every_window_once(windows: list[int], seed: int, pool: int, epoch: int) -> None:
    order = ShuffledOrder(np.array(windows), seed, pool)
    expected = [(shard, row) for shard, count in enumerate(windows) for row in range(count)]
    assert sorted(positions_of(order, epoch, 0, len(order))) == expected


@given(shards_of, st.integers(1, 15), st.data())
def test_a_range_of_positions_is_that_range_of_the_epoch(windows: list[int], pool: int, data: st.DataObject) -> None:
    order = ShuffledOrder(np.array(windows), 7, pool)
    begin = data.draw(st.integers(0, len(order)))
    end = data.draw(st.integers(begin, len(order)))
    whole = positions_of(order, 2, 0, len(order))
    assert positions_of(ShuffledOrder(np.array(windows), 7, pool), 2, begin, end) == whole[begin:end]


def test_seed_and_epoch_each_change_the_order() -> None:
    windows = np.array([50, 50])
    orders = [
        tuple(positions_of(ShuffledOrder(windows, seed, 2), epoch, 0, 100)) for seed in range(3) for epoch in range(3)
    ]
    assert len(set(orders)) == 9


def test_the_order_is_pinned() -> None:
    assert positions_of(ShuffledOrder(np.array([3, 2, 3]), 5, 2), 1, 0, 8) == [
        (2, 2),
        (2, 1),
        (2, 0),
        (0, 1),
        (0, 2),
        (0, 0),
        (1, 1),
        (1, 0),
    ]


@pytest.mark.parametrize(("shards", "pool", "sizes"), [(9, 8, [4, 5]), (8, 8, [8]), (3, 1, [1, 1, 1]), (2, 16, [2])])
def test_pools_are_alike_in_size(shards: int, pool: int, sizes: list[int]) -> None:
    order = ShuffledOrder(np.full(shards, 10), 0, pool)
    seen = [len({shard for shard, _ in positions_of(order, 0, at, at + 10 * size)}) for at, size in _runs(sizes)]
    assert seen == sizes


def _runs(sizes: list[int]) -> list[tuple[int, int]]:
    return [(10 * sum(sizes[:i]), size) for i, size in enumerate(sizes)]


@given(shards_of, st.integers(1, 15), st.integers(0, 3), st.data())
def test_positions_come_in_any_order_and_any_number(
    windows: list[int], pool: int, epoch: int, data: st.DataObject
) -> None:
    order = ShuffledOrder(np.array(windows), 7, pool)
    asked = data.draw(st.lists(st.integers(0, len(order) - 1), max_size=60))
    whole = positions_of(order, epoch, 0, len(order))
    pieces, rows = order.at(epoch, np.array(asked, np.int64))
    assert pieces.dtype == rows.dtype == np.int64
    assert list(zip(pieces.tolist(), rows.tolist(), strict=True)) == [whole[position] for position in asked]


@given(shards_of, st.integers(0, 2**63 - 1), st.integers(1, 15), st.integers(0, 3))
def test_an_order_is_that_of_its_definition(windows: list[int], seed: int, pool: int, epoch: int) -> None:
    order = ShuffledOrder(np.array(windows), seed, pool)
    assert positions_of(order, epoch, 0, len(order)) == [
        window
        for number, pieces in enumerate(pools_of(windows, seed, pool, epoch))
        for window in permuted([(piece, row) for piece in pieces for row in range(windows[piece])], seed, epoch, number)
    ]


def pools_of(windows: list[int], seed: int, pool: int, epoch: int) -> list[list[int]]:
    """The pieces of each pool, one by one."""
    count = len(windows)
    hashes = keyed_hash(np.arange(count), seed, epoch).tolist()
    pieces = sorted(range(count), key=lambda piece: hashes[piece])
    pools = -(-count // pool)
    return [pieces[i * count // pools : (i + 1) * count // pools] for i in range(pools)]


def permuted(held: list[tuple[int, int]], seed: int, epoch: int, number: int) -> list[tuple[int, int]]:
    return [held[index] for index in permute(np.arange(len(held)), len(held), seed, epoch, 1 + number).tolist()]


@given(shards_of, st.integers(0, 2**63 - 1), st.integers(1, 15), st.integers(0, 3))
def test_pieces_are_expected_before_they_are_used_and_no_others(
    windows: list[int], seed: int, pool: int, epoch: int
) -> None:
    order = ShuffledOrder(np.array(windows), seed, pool)
    pools = pools_of(windows, seed, pool, epoch)
    following = [*pools[1:], pools_of(windows, seed, pool, epoch + 1)[0]]
    position = 0
    for own, coming in zip(pools, following, strict=True):
        held, before = sum(windows[piece] for piece in own), 0
        for i in range(held):
            expected = order.ahead(epoch, position + i).tolist()
            assert expected == coming[: len(expected)]
            assert before <= len(expected)
            assert (i + 1) * len(coming) <= held * len(expected) < (i + 1) * len(coming) + held
            before = len(expected)
        position += held
        assert before == len(coming)  # all are there when the next pool begins


def test_what_is_expected_of_two_pools_of_two() -> None:
    order = ShuffledOrder(np.array([2, 2, 2, 2]), 5, 2)
    assert [pools_of([2, 2, 2, 2], 5, 2, epoch) for epoch in (0, 1)] == [[[3, 2], [0, 1]], [[2, 0], [1, 3]]]
    assert [order.ahead(0, position).tolist() for position in range(8)] == [
        [0],
        [0],
        [0, 1],
        [0, 1],
        [2],
        [2],
        [2, 0],
        [2, 0],
    ]


def test_a_fixed_order_expects_nothing() -> None:
    assert FixedOrder(np.array([1, 0, 1]), np.array([5, 6, 7])).ahead(0, 1).tolist() == []


def test_a_fixed_order_takes_positions_in_any_order() -> None:
    order = FixedOrder(np.array([1, 0, 1]), np.array([5, 6, 7]))
    assert [part.tolist() for part in order.at(0, np.array([2, 0, 2, 1]))] == [[1, 1, 1, 0], [7, 5, 7, 6]]


def test_a_fixed_order_is_the_same_in_every_epoch() -> None:
    order = FixedOrder(np.array([1, 0, 1]), np.array([5, 6, 7]))
    assert len(order) == 3
    assert [part.tolist() for part in order.at(4, np.arange(1, 3))] == [[0, 1], [6, 7]]
