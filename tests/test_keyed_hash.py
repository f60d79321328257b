import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.keyed_hash import keyed_hash


def splitmix64(x: int) -> int:
    """One output of Vigna's splitmix64.c for the state x, in Python's integers."""
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


# Published outputs of splitmix64 for seeds 0 and 1; all others follow from the same arithmetic. These values must
# never change: every order of every dataset hangs on them.
@pytest.mark.parametrize(
    ("key", "hashes"),
    [
        ((), [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0x975835DE1C9756CE]),
        ((0,), [0xA706DD2F4D197E6F, 0x08B4FDA8C892B50E, 0xD7CC9674FF5FFA39]),
        ((7, 1, 0), [0x328B43DC0BF159E5, 0xECF5970337FCF2A6, 0x94BEA59DB197E55D]),
        ((2**63 - 1, 2, 3, 4), [0xFC533A615C57B3F8, 0x4E0B57B0EBD2B39D, 0x1810C6B0F398FB67]),
    ],
)
def test_hashes_are_pinned(key: tuple[int, ...], hashes: list[int]) -> None:
    assert keyed_hash(np.arange(3), *key).tolist() == hashes


def test_the_order_of_a_key_is_pinned() -> None:
    assert np.argsort(keyed_hash(np.arange(10), 7, 1, 0), kind="stable").tolist() == [5, 0, 3, 9, 2, 4, 8, 7, 6, 1]


@given(value=st.integers(0, 2**63 - 1), key=st.lists(st.integers(0, 2**63 - 1), max_size=4))
def test_each_part_of_the_key_is_mixed_in(value: int, key: list[int]) -> None:
    state = 0
    for part in key:
        state = splitmix64(part ^ state)

    assert keyed_hash(np.array([value]), *key).tolist() == [splitmix64(value ^ state)]


def test_hashes_do_not_depend_on_the_integers_dtype() -> None:
    expected = keyed_hash(np.array([0, 5, 100], np.int64), 3)

    for dtype in (np.uint8, np.int16, np.int32, np.uint64):
        assert keyed_hash(np.array([0, 5, 100], dtype), 3).tolist() == expected.tolist()
    assert expected.dtype == np.uint64


def test_neighbouring_keys_and_key_lengths_give_unrelated_hashes() -> None:
    keys: list[tuple[int, ...]] = [(), (0,), (0, 0), (0, 0, 0), (1,), (0, 1), (1, 0), (1, 1)]

    hashes = {key: keyed_hash(np.arange(1000), *key) for key in keys}

    assert len(set(np.concatenate(list(hashes.values())).tolist())) == 1000 * len(keys)
    bits = np.unpackbits((hashes[(0,)] ^ hashes[(1,)]).view(np.uint8)).mean()
    assert bits == pytest.approx(0.5, abs=0.01)


def test_no_values_have_no_hashes() -> None:
    assert keyed_hash(np.arange(0), 1).tolist() == []
