import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.windows import TAILS, Tail, WindowSpec


def brute_force(spec: WindowSpec, steps: int) -> list[list[int]]:
    """The real steps of each window, by the definition."""
    full = [[i + k * spec.stride for k in range(spec.length)] for i in range(0, steps, spec.shift)]
    full = [window for window in full if window[-1] < steps]
    after_last = full[-1][-1] + 1 if full else 0
    if spec.tail == "pad" and after_last < steps:
        begin = len(full) * spec.shift
        full += [list(range(begin, min(begin + spec.extent, steps), spec.stride))] if begin < steps else []
    if spec.tail == "align" and after_last < steps and spec.extent <= steps:
        full.append(list(range(steps - spec.extent, steps, spec.stride)))
    return full


def fresh_by_definition(windows: list[list[int]]) -> list[int]:
    """How many steps at the begin of each window are in an earlier one; none of the others is."""
    seen: set[int] = set()
    fresh = []
    for window in windows:
        fresh.append(next((k for k, step in enumerate(window) if step not in seen), len(window)))
        assert not seen & set(window[fresh[-1] :])
        seen.update(window)
    return fresh


def specs(reach: int = 12) -> st.SearchStrategy[WindowSpec]:
    return st.builds(
        WindowSpec,
        length=st.integers(1, reach),
        shift=st.integers(1, 2 * reach),
        stride=st.integers(1, reach),
        tail=st.sampled_from(TAILS),
    )


def test_there_are_three_tails() -> None:
    assert TAILS == ("drop", "pad", "align")
    assert WindowSpec(4, 2) == WindowSpec(length=4, shift=2, stride=1, tail="drop", per_record=1)


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
    spec = WindowSpec(length, shift)

    assert spec.count(steps) == windows
    assert spec.count(np.array([steps])).tolist() == [windows]


# One step more or less than an exact fit is where countings go wrong.
@pytest.mark.parametrize(
    ("steps", "length", "shift", "stride", "drop", "pad", "align"),
    [
        (0, 4, 2, 1, [], [], []),
        (1, 4, 2, 1, [], [(0, 1)], []),
        (3, 4, 2, 1, [], [(0, 3)], []),
        (4, 4, 2, 1, [(0, 4)], [(0, 4)], [(0, 4)]),
        (5, 4, 2, 1, [(0, 4)], [(0, 4), (2, 3)], [(0, 4), (1, 4)]),
        (6, 4, 2, 1, [(0, 4), (2, 4)], [(0, 4), (2, 4)], [(0, 4), (2, 4)]),
        (7, 4, 2, 1, [(0, 4), (2, 4)], [(0, 4), (2, 4), (4, 3)], [(0, 4), (2, 4), (3, 4)]),
        (6, 4, 4, 1, [(0, 4)], [(0, 4), (4, 2)], [(0, 4), (2, 4)]),
        (8, 4, 4, 1, [(0, 4), (4, 4)], [(0, 4), (4, 4)], [(0, 4), (4, 4)]),
        # A shift beyond the window: what lies in the gap is no step of a next window.
        (4, 3, 5, 1, [(0, 3)], [(0, 3)], [(0, 3), (1, 3)]),
        (5, 3, 5, 1, [(0, 3)], [(0, 3)], [(0, 3), (2, 3)]),
        (6, 3, 5, 1, [(0, 3)], [(0, 3), (5, 1)], [(0, 3), (3, 3)]),
        (7, 3, 5, 1, [(0, 3)], [(0, 3), (5, 2)], [(0, 3), (4, 3)]),
        (8, 3, 5, 1, [(0, 3), (5, 3)], [(0, 3), (5, 3)], [(0, 3), (5, 3)]),
        # A stride of 3: three steps reach over seven, and a step is real as soon as it exists.
        (6, 3, 2, 3, [], [(0, 2)], []),
        (7, 3, 2, 3, [(0, 3)], [(0, 3)], [(0, 3)]),
        (8, 3, 2, 3, [(0, 3)], [(0, 3), (2, 2)], [(0, 3), (1, 3)]),
        (9, 3, 2, 3, [(0, 3), (2, 3)], [(0, 3), (2, 3)], [(0, 3), (2, 3)]),
        (3, 3, 2, 3, [], [(0, 1)], []),
        (4, 3, 2, 3, [], [(0, 2)], []),
        # Windows of one step have no tail but what a shift skips.
        (5, 1, 1, 9, [(i, 1) for i in range(5)], [(i, 1) for i in range(5)], [(i, 1) for i in range(5)]),
        (5, 1, 3, 1, [(0, 1), (3, 1)], [(0, 1), (3, 1)], [(0, 1), (3, 1), (4, 1)]),
    ],
)
def test_windows_near_an_exact_fit(
    steps: int,
    length: int,
    shift: int,
    stride: int,
    drop: list[tuple[int, int]],
    pad: list[tuple[int, int]],
    align: list[tuple[int, int]],
) -> None:
    expected: dict[Tail, list[tuple[int, int]]] = {"drop": drop, "pad": pad, "align": align}
    for tail, windows in expected.items():
        spec = WindowSpec(length, shift, stride, tail)
        indices = range(int(spec.count(steps)))
        assert [(int(spec.start(i, steps)), int(spec.valid(i, steps))) for i in indices] == windows, tail


@pytest.mark.parametrize(
    ("spec", "extent", "record_steps"),
    [
        (WindowSpec(4, 2), 4, 4),
        (WindowSpec(4, 2, stride=3), 10, 4),  # a window of its own stores its own steps alone
        (WindowSpec(4, 2, per_record=2), 4, 6),
        (WindowSpec(4, 2, stride=3, per_record=2), 10, 12),
        (WindowSpec(4, 9, per_record=3), 4, 22),
        (WindowSpec(1, 1, stride=100, per_record=5), 1, 5),
        (WindowSpec(2**31 - 1, 2**31 - 1, 2**31 - 1), (2**31 - 2) * (2**31 - 1) + 1, 2**31 - 1),
    ],
)
def test_a_window_reaches_over_its_extent(spec: WindowSpec, extent: int, record_steps: int) -> None:
    assert (spec.extent, spec.record_steps) == (extent, record_steps)


@settings(max_examples=400)
@given(steps=st.integers(0, 80), spec=specs())
def test_windows_are_those_of_the_definition(steps: int, spec: WindowSpec) -> None:
    windows = brute_force(spec, steps)
    indices = range(len(windows))

    assert spec.count(steps) == len(windows)
    assert [spec.start(i, steps) for i in indices] == [window[0] for window in windows]
    assert [spec.valid(i, steps) for i in indices] == [len(window) for window in windows]
    assert [spec.fresh(i, steps) for i in indices] == fresh_by_definition(windows)
    assert spec.covered(steps) == len({step for window in windows for step in window})


@settings(max_examples=200)
@given(
    steps=st.integers(0, 2**33 + 7),
    length=st.integers(1, 9),
    shift=st.integers(2**30, 2**31 - 1),
    stride=st.integers(1, 2**31 - 1),
    tail=st.sampled_from(TAILS),
)
def test_windows_far_apart_are_those_of_the_definition(
    steps: int, length: int, shift: int, stride: int, tail: Tail
) -> None:
    spec = WindowSpec(length, shift, stride, tail)
    windows = brute_force(spec, steps)
    indices = np.arange(len(windows))

    assert spec.count(steps) == len(windows)
    assert spec.start(indices, steps).tolist() == [window[0] for window in windows]
    assert spec.valid(indices, steps).tolist() == [len(window) for window in windows]
    assert spec.fresh(indices, steps).tolist() == fresh_by_definition(windows)
    assert spec.covered(steps) == len({step for window in windows for step in window})


@given(steps=st.lists(st.integers(0, 200), min_size=1, max_size=9), spec=specs())
def test_arrays_are_counted_as_their_elements_are(steps: list[int], spec: WindowSpec) -> None:
    array = np.array(steps, np.int64)
    counts = spec.count(array)
    cells = [(i, one) for one, count in zip(steps, counts.tolist(), strict=True) for i in range(count)]
    index, of = np.array(cells, np.int64).reshape(-1, 2).T

    assert counts.tolist() == [spec.count(one) for one in steps]
    assert spec.covered(array).tolist() == [spec.covered(one) for one in steps]
    for method in (spec.start, spec.valid, spec.fresh):
        assert method(index, of).tolist() == [method(*cell) for cell in cells]
        assert method(index, of).dtype == np.int64
    assert spec.covered(array).dtype == counts.dtype == np.int64


@pytest.mark.parametrize("tail", TAILS)
def test_indices_and_steps_broadcast(tail: Tail) -> None:
    spec = WindowSpec(3, 2, 2, tail)
    steps = np.array([9, 12, 30])

    for method in (spec.start, spec.valid, spec.fresh):
        table = np.broadcast_to(method(np.arange(2)[:, np.newaxis], steps), (2, 3))  # `start` may need no steps
        assert table.tolist() == [[method(i, one) for one in steps.tolist()] for i in range(2)]


@pytest.mark.parametrize("method", ["count", "covered"])
def test_no_episodes_have_no_windows(method: str) -> None:
    for tail in TAILS:
        counted = getattr(WindowSpec(3, 2, 2, tail), method)(np.empty(0, np.int64))
        assert (counted.shape, counted.dtype) == ((0,), np.int64)


def test_no_step_count_overflows() -> None:
    largest = 2**31 - 1
    assert WindowSpec(1, 1).count(2**42) == WindowSpec(1, 1).covered(2**42) == 2**42
    assert WindowSpec(1, 2**62).count(np.array([2**42, 5])).tolist() == [1, 1]
    assert WindowSpec(2**63 - 1, 1).count(np.array([2**42])).tolist() == [0]
    assert WindowSpec(1, 1).covered(np.array([2**42, 0])).tolist() == [2**42, 0]

    long = WindowSpec(largest, 1)
    assert long.count(2**33) == 2**33 - largest + 1
    assert long.covered(2**33) == 2**33
    assert long.start(2**33 - largest, 2**33) == 2**33 - largest
    assert long.fresh(2**33 - largest, 2**33) == largest - 1

    assert WindowSpec(largest, largest).count(2**33) == 4
    assert WindowSpec(largest, largest).covered(2**33) == 4 * largest
    padded, aligned = WindowSpec(largest, largest, 1, "pad"), WindowSpec(largest, largest, 1, "align")
    assert padded.count(2**33) == aligned.count(2**33) == 5
    assert padded.covered(2**33) == aligned.covered(2**33) == 2**33
    assert (padded.start(4, 2**33), padded.valid(4, 2**33)) == (4 * largest, 4)
    assert (aligned.start(4, 2**33), aligned.fresh(4, 2**33)) == (2**33 - largest, largest - 4)


@pytest.mark.parametrize("tail", TAILS)
def test_the_largest_options_of_all_do_not_overflow(tail: Tail) -> None:
    largest = 2**31 - 1
    spec = WindowSpec(largest, largest, largest, tail, largest)

    assert spec.count(np.array([2**42, spec.extent - 1, spec.extent])).tolist() == [
        *([1, 1] if tail == "pad" else [0, 0]),
        1,
    ]
    assert spec.covered(np.array([2**42, spec.extent])).tolist() == [
        -(-(2**42) // largest) if tail == "pad" else 0,
        largest,
    ]
    twice = spec.extent + largest
    assert (spec.count(twice), spec.start(1, twice), spec.valid(1, twice)) == (2, largest, largest)
    assert (spec.fresh(1, twice), spec.covered(twice)) == (largest - 1, largest + 1)


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
    counts = WindowSpec(length, shift).count(np.repeat([*episodes], [*episodes.values()]))
    assert (int(counts.sum()), int((counts == 0).sum())) == (windows, short)
