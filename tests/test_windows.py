import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.windows import count_covered, count_windows


@pytest.mark.parametrize(
    ("steps", "length", "shift", "windows"),
    [
        (0, 1, 1, 0),
        (1, 1, 1, 1),
        (9, 10, 1, 0),
        (10, 10, 1, 1),
        (10, 10, 1000, 1),
        (11, 10, 1, 2),
        (1, 10, 3, 0),  # (1 - 10) // 3 + 1 is -2: below one window, never fewer than none
        (20, 10, 10, 2),
        (19, 10, 10, 1),
        (20, 4, 7, 3),  # a gap of three steps between windows
        (100_000, 1024, 256, 387),
    ],
)
def test_windows_are_counted(steps: int, length: int, shift: int, windows: int) -> None:
    assert count_windows(steps, length, shift) == windows
    assert count_windows(np.array([steps]), length, shift).tolist() == [windows]


def test_no_step_count_overflows() -> None:
    assert count_windows(2**42, 1, 1) == 2**42
    assert count_windows(np.array([2**42, 5]), 1, 2**62).tolist() == [1, 1]
    assert count_windows(np.array([2**42]), 2**63 - 1, 1).tolist() == [0]
    assert count_covered(np.array([2**42, 0]), 1, 1).tolist() == [2**42, 0]


@given(steps=st.integers(0, 80), length=st.integers(1, 20), shift=st.integers(1, 30))
def test_windows_are_those_whose_steps_all_exist(steps: int, length: int, shift: int) -> None:
    starts = [start for start in range(0, steps, shift) if start + length <= steps]

    assert count_windows(steps, length, shift) == len(starts)


@pytest.mark.parametrize(
    ("windows", "length", "shift", "covered"),
    [(0, 4, 2, 0), (1, 4, 2, 4), (3, 4, 2, 8), (3, 4, 4, 12), (3, 4, 100, 12), (1, 4, 100, 4)],
)
def test_covered_steps_are_counted(windows: int, length: int, shift: int, covered: int) -> None:
    assert count_covered(windows, length, shift) == covered
    assert count_covered(np.array([windows]), length, shift).tolist() == [covered]


@given(windows=st.integers(0, 12), length=st.integers(1, 9), shift=st.integers(1, 20))
def test_a_step_in_two_windows_is_covered_once(windows: int, length: int, shift: int) -> None:
    steps = {i * shift + offset for i in range(windows) for offset in range(length)}

    assert count_covered(windows, length, shift) == len(steps)


@given(steps=st.lists(st.integers(0, 200), max_size=9), length=st.integers(1, 20), shift=st.integers(1, 30))
def test_arrays_are_counted_as_their_elements_are(steps: list[int], length: int, shift: int) -> None:
    windows = count_windows(np.array(steps, np.int64), length, shift)
    covered = count_covered(windows, length, shift)

    assert windows.tolist() == [count_windows(one, length, shift) for one in steps]
    assert covered.tolist() == [count_covered(one, length, shift) for one in windows.tolist()]
    assert covered.dtype == windows.dtype == np.int64


# How many episodes of how many steps three public recordings have: spoken vowels (UCI Japanese Vowels), a heart-rate
# sensor (the samples of the HeartPy package) and synthesized speech.
VOWELS = {7: 2, 9: 10, 10: 25, 11: 44, 12: 53, 13: 64, 14: 67, 15: 79, 16: 66, 17: 62, 18: 47, 19: 24, 20: 24, 21: 28}
VOWELS |= {22: 13, 23: 16, 24: 8, 25: 5, 26: 2, 29: 1}
HEART = {2483: 1, 15000: 1, 68476: 1}
SPEECH = dict.fromkeys((80694, 71303, 77236, 15256, 210805, 159915, 81874, 73257, 78991, 16028, 220454, 163275), 1)


@pytest.mark.parametrize(
    ("episodes", "length", "shift", "windows", "short"),
    [
        (VOWELS, 7, 1, 6121, 0),
        (VOWELS, 10, 3, 1605, 12),
        (HEART, 256, 64, 1332, 0),
        (SPEECH, 16384, 4096, 261, 2),
    ],
)
def test_real_recordings_have_so_many_windows(
    episodes: dict[int, int], length: int, shift: int, windows: int, short: int
) -> None:
    counts = count_windows(np.repeat([*episodes], [*episodes.values()]), length, shift)
    assert (int(counts.sum()), int((counts == 0).sum())) == (windows, short)
