from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.features import DTYPES
from shards.moments import measure
from shards.statistics import Statistics, summarize
from shards.verify.sums import add_up, confirms, together


def told_of(values: np.ndarray) -> Statistics:
    return summarize("x", measure(values))


@pytest.mark.parametrize("shape", [(5000,), (5000, 1), (3000, 3), (40, 7, 2), (30, 2000)])
@pytest.mark.parametrize("dtype", sorted(name for name in DTYPES if "complex" not in name))
def test_what_a_build_measures_is_confirmed_in_any_parts(shape: tuple[int, ...], dtype: str) -> None:
    random = np.random.default_rng(5)
    values = (random.standard_normal(shape) * 20 + 5).astype(DTYPES[dtype])
    told = told_of(values)
    parts = [add_up(part, told) for part in np.array_split(values, 3)]
    assert confirms(together(parts), told)
    assert not confirms(together(parts[:2]), told)


@pytest.mark.parametrize("key", ["mean", "std", "min", "max"])
@pytest.mark.parametrize(("offset", "spread"), [(0.0, 1.0), (1e6, 1e-3), (-1e-9, 1e-12)])
def test_a_small_change_is_not_confirmed(key: str, offset: float, spread: float) -> None:
    values = np.random.default_rng(5).standard_normal((9000, 2)) * spread + offset
    told = told_of(values)
    part = told.components[1]
    apart = 1e-6 * spread + 2e-12 * abs(offset)
    changed = replace(part, **{key: getattr(part, key) + apart})
    assert confirms(add_up(values, told), told)
    told = replace(told, components=(told.components[0], changed))
    assert not confirms(add_up(values, told), told)


numbers = st.one_of(
    st.floats(width=32), st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 3.4e38, 1e-45]), st.floats(-9, 9, width=32)
)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=9), wide=st.booleans())
def test_values_that_are_not_finite_are_counted(rows: list[tuple[float, float]], wide: bool) -> None:
    values = np.array(rows, np.float64 if wide else np.float32)
    told = told_of(values)
    assert confirms(add_up(values, told), told)
    total = replace(told.total, nan=told.total.nan + 1)
    assert not confirms(add_up(values, told), replace(told, total=total))


def test_where_squares_overflow_mean_and_deviation_are_believed() -> None:
    values = np.array([1e300, -1e300, 1e299])
    assert confirms(add_up(values, told_of(values)), told_of(values))
