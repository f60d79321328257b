import json
import math
import sys
from copy import deepcopy
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shards.document import Document
from shards.errors import ManifestError
from shards.features import DTYPES
from shards.moments import Merging, Moments, measure, merge, total
from shards.statistics import Statistics, Summary, parse_statistics, statistics_document, summarize

REAL_DTYPES = [name for name in DTYPES if not name.startswith("complex")]
ARRAYS = ("count", "nan", "infinite", "mean", "squares", "low", "high")

EXACT = ("count", "nan", "infinite", "low", "high")  # whatever the order that values and parts are taken in


def lists(moments: Moments) -> dict[str, list[Any]]:
    return {name: getattr(moments, name).tolist() for name in ARRAYS}


def exact(values: Any) -> tuple[Fraction, Fraction]:
    """The mean and the variance of finite numbers, in rational arithmetic."""
    ratios = [float(value).as_integer_ratio() for value in values]
    unit = max(denominator for _, denominator in ratios)  # all are powers of two
    numbers = [numerator * (unit // denominator) for numerator, denominator in ratios]
    mean = Fraction(sum(numbers), len(numbers))
    return mean / unit, (Fraction(sum(number * number for number in numbers), len(numbers)) - mean * mean) / unit**2


def assert_exact(moments: Moments, values: np.ndarray, tolerance: float) -> None:
    """One component's mean is right to the tolerance times the largest value, its std to the tolerance."""
    mean, variance = exact(values.tolist())
    assert abs(Fraction(moments.mean[0].item()) - mean) <= Fraction(tolerance) * int(np.abs(values).max() + 1)
    std = math.sqrt(moments.squares[0] / moments.count[0])
    assert std == pytest.approx(math.sqrt(variance), rel=tolerance, abs=1e-150)


def scattered(count: int) -> np.ndarray:
    """Numbers in [-2048, 2048) that are the same everywhere, for the products are exact."""
    return (np.arange(count) * 2654435761 % 2**32) / 2**20 - 2048


def test_moments_of_a_few_numbers() -> None:
    assert lists(measure(np.array([1.0, 2.0, 4.0, 5.0]))) == {
        "count": [4],
        "nan": [0],
        "infinite": [0],
        "mean": [3.0],
        "squares": [10.0],
        "low": [1.0],
        "high": [5.0],
    }


def test_the_last_axis_of_a_step_are_the_components_and_all_other_axes_are_counted() -> None:
    moments = measure(np.arange(24).reshape(2, 2, 2, 3))

    assert lists(moments) == {
        "count": [8] * 3,
        "nan": [0] * 3,
        "infinite": [0] * 3,
        "mean": [10.5, 11.5, 12.5],
        "squares": [378.0] * 3,
        "low": [0.0, 1.0, 2.0],
        "high": [21.0, 22.0, 23.0],
    }
    assert lists(total(moments)) == lists(measure(np.arange(24.0))) | {"mean": [11.5], "squares": [1150.0]}


# These bits must never change: the same episodes would give another manifest.
@pytest.mark.parametrize(
    ("shape", "bits"),
    [
        ((1000,), ["0x1.e2c026d7464a5p+4", "0x1.89374bc6a7f00p-53", "0x1.bc309b5c404c4p+16"]),
        ((300001,), ["0x1.e2b7f9dc33681p+4", "0x1.a0abc65f4b79fp-52", "0x1.046aee5b9f934p+25"]),
        ((50000, 3), ["0x1.e2b7c38d3d026p+4", "-0x1.5423f5c98cee8p-52", "0x1.046ba9d920f9ep+24"]),
        ((3, 40000, 2), ["0x1.e2b7d8c618f36p+4", "-0x1.2027b427de23cp-50", "0x1.a0ab66b8a7cf7p+24"]),
        ((70, 600), ["0x1.e2b9234c502d5p+4", "0x1.6e4a8537afa40p-50", "0x1.23aa2ad32c01ap+22"]),
    ],
)
def test_the_bits_are_pinned(shape: tuple[int, ...], bits: list[str]) -> None:
    moments = total(measure(np.sqrt(np.abs(scattered(math.prod(shape)).reshape(shape)))))

    assert [array[0].item().hex() for array in (moments.mean, moments.rest, moments.squares)] == bits


def by_halves(numbers: list[float]) -> float:
    while len(numbers) > 1:
        half = len(numbers) // 2
        kept = len(numbers) - half
        numbers = [a + b for a, b in zip(numbers[:half], numbers[kept:], strict=True)] + numbers[half:kept]
    return numbers[0]


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=70))
def test_a_block_is_summed_by_halves(numbers: list[float]) -> None:
    count = float(len(numbers))
    mean = by_halves(numbers) / count
    rest = by_halves([number - mean for number in numbers]) / count
    squares = by_halves([(number - mean) * (number - mean) for number in numbers]) - rest * rest * count

    moments = measure(np.array(numbers))

    assert moments.mean.tolist() == [min(max(mean + rest, min(numbers)), max(numbers))]
    assert moments.squares.tolist() == [max(squares, 0.0)]


@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.float16]),
        st.integers(1, 200),
        elements=st.floats(-1000, 1000, width=16),
    )
)
def test_moments_against_rational_arithmetic(values: np.ndarray) -> None:
    assert_exact(measure(values), values, 1e-12)


# The mean of the squares less the square of the mean would lose these deviations from 1e8 on, and so would the merging
# of parts by means that are no more than a float64.
@pytest.mark.parametrize(
    ("offset", "tolerance"), [(0.0, 1e-14), (1e4, 1e-14), (1e8, 1e-14), (-1e8, 1e-14), (1e12, 1e-14)]
)
@pytest.mark.parametrize("count", [2, 1000, 70_000])
def test_a_large_mean_does_not_hurt_a_small_deviation(offset: float, tolerance: float, count: int) -> None:
    values = scattered(count) / 2**10 + offset

    assert_exact(measure(values), values, tolerance)
    assert_exact(merge([measure(part) for part in np.array_split(values, 7)]), values, tolerance)


@given(
    values=hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6)),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_parts_merge_to_the_whole(values: np.ndarray, cuts: list[int]) -> None:
    whole, merged = measure(values), merge([measure(part) for part in np.split(values, sorted(cuts))])

    assert [lists(merged)[name] for name in EXACT] == [lists(whole)[name] for name in EXACT]
    largest = np.abs(values).max()
    assert merged.mean[0] == pytest.approx(whole.mean[0], abs=1e-14 * largest)
    assert merged.squares[0] == pytest.approx(whole.squares[0], rel=1e-12, abs=1e-14 * largest**2)


def test_a_mean_is_held_to_twice_the_precision() -> None:
    values = scattered(70_000) + 1e12

    mean, _ = exact(values.tolist())

    for moments in (measure(values), merge([measure(part) for part in np.array_split(values, 7)])):
        assert moments.mean[0] == float(mean)
        assert abs(Fraction(moments.mean[0].item()) + Fraction(moments.rest[0].item()) - mean) < 1e-11


def test_parts_merge_as_a_balanced_tree_over_their_order() -> None:
    a, b, c, d, e = (measure(part) for part in np.array_split(scattered(1003), 5))

    tree = merge([merge([merge([a, b]), merge([c, d])]), e])

    assert merge([a, b, c, d, e]).to_bytes() == tree.to_bytes()


def test_a_part_without_values_changes_nothing() -> None:
    part, empty = measure(scattered(99).reshape(33, 3)), measure(np.empty((0, 3)))

    assert merge([part]).to_bytes() == part.to_bytes()
    assert merge([part, empty]).to_bytes() == part.to_bytes()
    assert merge([empty, part]).to_bytes() == part.to_bytes()
    assert merge([empty, empty]).to_bytes() == empty.to_bytes()


@pytest.mark.parametrize("shape", [(0,), (0, 2), (5, 0, 2)])
def test_moments_of_nothing(shape: tuple[int, ...]) -> None:
    components = shape[-1] if len(shape) > 1 else 1

    moments = measure(np.empty(shape, np.float32))

    assert lists(moments) == {
        **dict.fromkeys(("count", "nan", "infinite"), [0] * components),
        **dict.fromkeys(("mean", "squares"), [0.0] * components),
        "low": [math.inf] * components,
        "high": [-math.inf] * components,
    }
    assert total(moments).count.tolist() == [0]
    assert total(measure(np.empty((3, 0)))).count.tolist() == [0]


@pytest.mark.parametrize("value", [0.1, -1 / 3, 1e8 + 0.1, 1.7e308, 5e-324, -0.0])
@pytest.mark.parametrize("shape", [(1,), (1000,), (70_001,), (999, 7)])
def test_a_constant_has_itself_as_its_mean_and_no_deviation(value: float, shape: tuple[int, ...]) -> None:
    moments = measure(np.full(shape, value))

    for merged in (moments, merge([moments, measure(np.full(shape, value)[:1]), moments]), total(moments)):
        assert set(merged.mean.tolist()) == set(merged.low.tolist()) == set(merged.high.tolist()) == {value}
        assert set(merged.squares.tolist()) == {0.0}


def test_zeros_of_either_sign_are_one() -> None:
    expected = measure(np.zeros(9)).to_bytes()

    for zeros in (np.full(9, -0.0), np.array([0.0, -0.0, 0.0] * 3), np.array([-0.0, 0.0, -0.0] * 3)):
        assert measure(zeros).to_bytes() == expected


@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_every_real_dtype_in_every_layout(dtype: str) -> None:
    values = (np.arange(4 * 5 * 6) % 90).reshape(4, 5, 6).astype(DTYPES[dtype])
    expected = measure(values.astype(np.float64))

    padded = np.zeros((8, 5, 9), values.dtype)
    padded[::2, :, 3:] = values
    layouts = [values, np.asfortranarray(values), padded[::2, :, 3:], values[::-1][::-1]]
    if dtype != "bfloat16":
        layouts.append(values.astype(values.dtype.newbyteorder(">")))
    values.flags.writeable = False

    assert [measure(layout).to_bytes() for layout in layouts] == [expected.to_bytes()] * len(layouts)
    assert total(expected).low.tolist() == [values.min()]
    assert total(expected).high.tolist() == [values.max()]


@pytest.mark.parametrize("rows", [1, 7, 2**16 // 3, 2**16 // 3 + 1, 50_000])
def test_steps_of_any_shape_are_one_sequence_of_rows(rows: int) -> None:
    values = scattered(3 * rows)

    assert measure(values.reshape(rows, 3)).to_bytes() == measure(values.reshape(1, rows, 3)).to_bytes()


def test_the_ends_of_the_integers() -> None:
    moments = measure(np.array([0, 2**64 - 1], np.uint64))
    assert (moments.low.tolist(), moments.high.tolist(), moments.mean.tolist()) == ([0.0], [2.0**64], [2.0**63])

    moments = measure(np.array([-(2**63), 2**63 - 1], np.int64))
    assert (moments.low.tolist(), moments.high.tolist(), moments.squares.tolist()) == (
        [-(2.0**63)],
        [2.0**63],
        [2.0**127],
    )


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    nan, inf = math.nan, math.inf
    values = np.array([[1.0, nan, 5.0, inf], [nan, nan, -inf, -inf], [inf, nan, 7.0, nan], [3.0, nan, 6.0, nan]])

    moments = measure(values)

    assert lists(moments) == {
        "count": [2, 0, 3, 0],
        "nan": [1, 4, 0, 2],
        "infinite": [1, 0, 1, 2],
        "mean": [2.0, 0.0, 6.0, 0.0],
        "squares": [2.0, 0.0, 2.0, 0.0],
        "low": [1.0, inf, 5.0, inf],
        "high": [3.0, -inf, 7.0, -inf],
    }
    assert lists(merge([moments, moments]))["mean"] == [2.0, 0.0, 6.0, 0.0]
    assert lists(total(moments)) == {
        "count": [5],
        "nan": [7],
        "infinite": [4],
        "mean": [4.4],
        "squares": [pytest.approx(23.2)],
        "low": [1.0],
        "high": [7.0],
    }


@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.float16]),
        st.tuples(st.integers(1, 40), st.integers(1, 4)),
        elements=st.floats(width=16) | st.sampled_from([math.nan, math.inf]),
    ),
)
def test_what_is_left_out_does_not_touch_the_rest(values: np.ndarray) -> None:
    moments = measure(values)

    assert moments.nan.tolist() == np.isnan(values).sum(axis=0).tolist()
    assert moments.infinite.tolist() == np.isinf(values).sum(axis=0).tolist()
    for component in range(values.shape[1]):
        column = values[:, component]
        column = column[np.isfinite(column)].astype(np.float64)
        assert moments.count[component] == len(column)
        if len(column):
            assert (moments.low[component], moments.high[component]) == (column.min(), column.max())
            assert_exact(measure(column), column, 1e-12)
            assert moments.mean[component] == pytest.approx(measure(column).mean[0], abs=1e-10)
            assert moments.squares[component] == pytest.approx(measure(column).squares[0], rel=1e-12)


@settings(max_examples=300)
@given(
    values=hnp.arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 3)), elements=st.floats()),
    cut=st.integers(0, 20),
)
def test_moments_are_always_numbers(values: np.ndarray, cut: int) -> None:
    for moments in (measure(values), merge([measure(values[:cut]), measure(values[cut:])]), total(measure(values))):
        filled = moments.count > 0
        assert np.isfinite([moments.mean, moments.squares]).all()
        assert (moments.squares >= 0).all()
        assert (moments.low <= moments.mean)[filled].all()
        assert (moments.mean <= moments.high)[filled].all()


def test_huge_values_overflow_neither_the_mean_nor_the_squares() -> None:
    huge = np.array([[1.5e308, 1.0], [-1.5e308, 2.0], [1.2e308, 3.0], [1.2e308, 4.0]])

    for moments in (measure(huge), merge([measure(huge[i : i + 1]) for i in range(4)])):
        assert moments.mean.tolist() == pytest.approx([0.6e308, 2.5])
        assert moments.squares.tolist() == [sys.float_info.max, 5.0]
    assert measure(np.array([3e153, 1e153])).squares.tolist() == pytest.approx([2e306])


@given(hnp.arrays(np.float64, st.tuples(st.integers(0, 5), st.integers(0, 5)), elements=st.floats()))
def test_moments_survive_as_bytes(values: np.ndarray) -> None:
    moments = measure(values)

    again = Moments.from_bytes(moments.to_bytes())

    assert again.to_bytes() == moments.to_bytes()
    assert lists(again) == lists(moments)
    assert again.rest.tolist() == moments.rest.tolist()
    assert all(getattr(again, name).dtype == getattr(moments, name).dtype for name in ARRAYS)


def test_the_bytes_are_pinned() -> None:
    bits = measure(np.array([1.0, 2.0, math.nan])).to_bytes().hex(" ", 8)

    assert bits.split() == [
        *("0200000000000000", "0100000000000000", "0000000000000000"),
        *("000000000000f83f", "0000000000000000", "000000000000e03f", "000000000000f03f", "0000000000000040"),
    ]


def test_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="reshape"):
        Moments.from_bytes(b"12345")


STATISTICS = Statistics(
    "observation.state",
    Summary(5, 3.0, 2.0, 1.0, 7.0, 4, 1),
    (Summary(2, 1.5, 0.5, 1.0, 2.0, 1, 1), Summary(3, 4.0, 2.0, 1.0, 7.0, 0, 0), Summary(0, 0.0, 0.0, 0.0, 0.0, 3, 0)),
)
DOCUMENT: dict[str, Any] = {
    "feature": "observation.state",
    "total": {"count": 5, "mean": 3.0, "std": 2.0, "min": 1.0, "max": 7.0, "nan": 4, "infinite": 1},
    "components": {
        "count": [2, 3, 0],
        "mean": [1.5, 4.0, 0.0],
        "std": [0.5, 2.0, 0.0],
        "min": [1.0, 1.0, 0.0],
        "max": [2.0, 7.0, 0.0],
        "nan": [1, 0, 3],
        "infinite": [1, 0, 0],
    },
}


def parse(document: Any) -> Statistics:
    return parse_statistics(Document(json.loads(json.dumps(document)), "manifest.json", "statistics[0]"))


def test_statistics_are_summed_up_from_moments() -> None:
    moments = measure(np.array([[1.0, math.nan], [5.0, math.inf]]))

    expected = Summary(2, 3.0, 2.0, 1.0, 5.0, 0, 0)
    assert summarize("x", moments) == Statistics(
        "x", Summary(2, 3.0, 2.0, 1.0, 5.0, 1, 1), (expected, Summary(0, 0.0, 0.0, 0.0, 0.0, 1, 1))
    )
    assert summarize("x", measure(np.array([1, 5]))) == Statistics("x", expected, (expected,))


def test_a_statistics_document_is_plain_json() -> None:
    assert statistics_document(STATISTICS) == DOCUMENT
    assert parse(DOCUMENT) == STATISTICS


@given(hnp.arrays(np.float64, st.tuples(st.integers(0, 9), st.integers(1, 4)), elements=st.floats()))
def test_statistics_survive_as_json(values: np.ndarray) -> None:
    statistics = summarize("x", measure(values))

    assert parse(statistics_document(statistics)) == statistics


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("total.count", 6, r"total\.count is not the sum of the components', 5"),
        ("total.nan", 3, r"total\.nan is not the sum of the components', 4"),
        ("total.infinite", 0, r"total\.infinite is not the sum of the components', 1"),
        ("total.count", 5.0, r"total\.count is 5\.0, not a whole number"),
        ("total.mean", math.nan, r"total\.mean is nan"),
        ("total.std", -1.0, r"total\.std is -1\.0, less than 0"),
        ("total.mean", 8.0, r"total\.mean is 8\.0, not in \[1\.0, 7\.0\]"),
        ("total.min", 0.0, r"total\.min is not that of the components"),
        ("total.max", 8.0, r"total\.max is not that of the components"),
        ("total.more", 1, r"total\.more is unknown"),
        ("more", 1, r"statistics\[0\]\.more is unknown"),
        ("feature", 1, r"feature is 1, not a text"),
        ("components", [], r"components is not a JSON object"),
        ("components.std", [0.5, -2.0, 0.0], r"components\.std is -2\.0, less than 0"),
        ("components.min", [1.0, 9.0, 0.0], r"components\.mean is 4\.0, not in \[9\.0, 7\.0\]"),
        ("components.nan", [1, 3], r"components\.nan must have as many entries as the other lists"),
        ("components.mean", [1.5, 4.0, "0"], r"components\.mean is '0'"),
        ("components", {key: [] for key in DOCUMENT["components"]}, "and one at least"),
        ("components", {key: [value] for key, value in DOCUMENT["total"].items()} | {"std": [1.0]}, "is not the total"),
    ],
)
def test_statistics_that_contradict_themselves_are_refused(place: str, value: Any, message: str) -> None:
    document = deepcopy(DOCUMENT)
    *outer, key = place.split(".")
    (document[outer[0]] if outer else document)[key] = value

    with pytest.raises(ManifestError, match=message):
        parse(document)


@pytest.mark.parametrize("key", list(DOCUMENT["total"]))
def test_no_part_of_statistics_may_be_missing(key: str) -> None:
    for outer in ("total", "components"):
        document = deepcopy(DOCUMENT)
        del document[outer][key]
        with pytest.raises(ManifestError, match=rf"{outer}\.{key} is missing"):
            parse(document)


@given(st.integers(0, 40), st.integers(1, 3))
def test_parts_that_come_one_by_one_merge_to_the_same_bits(count: int, components: int) -> None:
    random = np.random.default_rng(count)
    parts = [measure(random.standard_normal((random.integers(1, 9), components))) for _ in range(count)]
    merging = Merging()
    for part in parts:
        merging.add(part)
    merged = merging.result()
    assert (merged is None) == (not parts)
    assert merged is None or merged.to_bytes() == merge(parts).to_bytes()
