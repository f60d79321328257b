"""Steps of an epoch: every window once, equal parts, and what is left after the last full batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reader.steps import REMAINDERS, Remainder, Steps

sizes = st.integers(1, 200)
parts_and_batch = st.tuples(st.integers(1, 6), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] * pair[1]))
rules = st.sampled_from(REMAINDERS)


def each_step(steps: Steps) -> list[list[int]]:
    return [steps.positions(i, i + 1).tolist() for i in range(len(steps))]


def of_parts(windows: int, batch: int, rule: Remainder, parts: int) -> list[Steps]:
    return [Steps(windows, batch, rule, part, parts) for part in range(parts)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("keep", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        ("drop", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("repeat", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]),
    ],
)
def test_what_becomes_of_the_last_two_of_ten_windows(rule: Remainder, expected: list[list[int]]) -> None:
    assert each_step(Steps(10, 4, rule)) == expected


@pytest.mark.parametrize(
    ("rule", "expected"), [("keep", [[0, 1, 2]]), ("drop", []), ("repeat", [[0, 1, 2, 0, 1, 2, 0, 1]])]
)
def test_three_windows_in_batches_of_eight(rule: Remainder, expected: list[list[int]]) -> None:
    assert each_step(Steps(3, 8, rule)) == expected


def test_one_window_fills_a_batch_of_a_thousand_for_each_part() -> None:
    assert [each_step(steps) for steps in of_parts(1, 1000, "repeat", 4)] == [[[0] * 250]] * 4


@given(sizes, sizes, rules)
def test_every_window_comes_once_but_for_those_dropped_or_repeated(windows: int, batch: int, rule: Remainder) -> None:
    positions = [position for step in each_step(Steps(windows, batch, rule)) for position in step]
    left = windows % batch
    repeated = [i % windows for i in range(batch - left)] if left else []
    assert (
        positions
        == {
            "keep": list(range(windows)),
            "drop": list(range(windows - left)),
            "repeat": [*range(windows), *repeated],
        }[rule]
    )


@given(sizes, sizes, rules)
def test_all_batches_but_a_kept_last_one_are_full(windows: int, batch: int, rule: Remainder) -> None:
    lengths = [len(step) for step in each_step(Steps(windows, batch, rule))]
    assert all(length == batch for length in lengths[:-1])
    assert lengths[-1:] in ([], [batch]) or (rule == "keep" and lengths[-1] == windows % batch)


@given(sizes, parts_and_batch, st.sampled_from(["drop", "repeat"]))
def test_parts_joined_are_the_step_and_have_equal_counts(
    windows: int, parts_and_batch: tuple[int, int], rule: Remainder
) -> None:
    parts, batch = parts_and_batch
    shared = of_parts(windows, batch, rule, parts)
    whole = Steps(windows, batch, rule)
    assert {len(steps) for steps in shared} == {len(whole)}
    assert {steps.part_batch for steps in shared} == {batch // parts}
    for step, of_step in enumerate(each_step(whole)):
        pieces = [steps.positions(step, step + 1).tolist() for steps in shared]
        assert [len(piece) for piece in pieces] == [batch // parts] * parts
        assert [position for piece in pieces for position in piece] == of_step


@given(sizes, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["drop", "repeat"]))
def test_a_step_is_the_same_however_many_parts_share_it(
    windows: int, some: int, others: int, times: int, rule: Remainder
) -> None:
    batch = some * others * times

    def joined(parts: int) -> list[list[int]]:
        steps = [each_step(shared) for shared in of_parts(windows, batch, rule, parts)]
        return [[position for part in of_step for position in part] for of_step in zip(*steps, strict=True)]

    assert joined(some) == joined(others) == joined(1)


@given(sizes, parts_and_batch, rules, st.data())
def test_steps_asked_for_together_are_those_asked_for_one_by_one(
    windows: int, parts_and_batch: tuple[int, int], rule: Remainder, data: st.DataObject
) -> None:
    parts, batch = (1, parts_and_batch[1]) if rule == "keep" else parts_and_batch
    steps = Steps(windows, batch, rule, data.draw(st.integers(0, parts - 1)), parts)
    first = data.draw(st.integers(0, len(steps) + 2))
    last = data.draw(st.integers(first, len(steps) + 5))
    expected = [position for step in each_step(steps)[first:last] for position in step]
    found = steps.positions(first, last)
    assert found.dtype == np.int64
    assert found.tolist() == expected


def test_positions_of_a_huge_epoch_do_not_overflow() -> None:
    steps = Steps(2**40 + 1, 2**10, "repeat", 1, 2)
    assert len(steps) == 2**30 + 1
    assert steps.positions(2**30 - 1, 2**30)[[0, -1]].tolist() == [2**40 - 512, 2**40 - 1]
    assert steps.positions(2**30, 2**30 + 1)[[0, -1]].tolist() == [511, 1022]
