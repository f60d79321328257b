"""Standardized features and the mask of padded steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere, SaveEpisodes
from reader import load
from shards import OptionError
from shards.features import DTYPES

FLOATS = ["bfloat16", "float16", "float32", "float64"]
ROUNDING = {"bfloat16": 2**-7, "float16": 2**-9, "float32": 1e-5, "float64": 1e-13}


def save_archives(folder: Path, episodes: Sequence[dict[str, Any]]) -> str:
    folder.mkdir()
    for i, arrays in enumerate(episodes):
        np.savez(folder / f"e{i:03d}.npz", **arrays)
    return str(folder)


def read(folder: Path, split: str = "train", **options: Any) -> dict[str, np.ndarray]:
    """One epoch in order, batches joined."""
    batches = list(load(folder, split, batch_size=7, shuffle=False, **options).as_numpy_iterator())
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("step_shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("per_record", [1, 3])
def test_each_component_is_standardized(
    tmp_path: Path,
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
    dtype: str,
    step_shape: tuple[int, ...],
    per_record: int,
) -> None:
    random = np.random.default_rng(1)
    scale, offset = (np.array([0.25, 3.0, 100.0]), np.array([0.0, -7.0, 40.0])) if step_shape else (5.0, 2.0)
    arrays = [
        (random.standard_normal((steps, *step_shape)) * scale + offset).astype(np.float32) for steps in (40, 31, 9)
    ]
    build_here(
        save_episodes(tmp_path / "in", arrays),
        tmp_path / "out",
        window_length=6,
        shift=4,
        dtype={"window": dtype},
        windows_per_record=per_record,
    )
    plain, normal = read(tmp_path / "out")["window"], read(tmp_path / "out", normalize=True)["window"]
    assert normal.dtype == DTYPES[dtype]
    stored = [array[: (len(array) - 6) // 4 * 4 + 6].astype(DTYPES[dtype]) for array in arrays]  # the covered steps
    rows = wide(np.concatenate(stored)).reshape(-1, step_shape[-1] if step_shape else 1)
    mean, std = (rows.mean(0), rows.std(0)) if step_shape else (rows.mean(), rows.std())
    np.testing.assert_allclose(wide(normal), (wide(plain) - mean) / std, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("per_record", [1, "auto"])
def test_a_split_of_which_each_step_comes_once_gets_mean_0_and_deviation_1(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str, per_record: Any
) -> None:
    random = np.random.default_rng(2)
    arrays = [random.gamma(2.0, [1.0, 50.0], (steps, 2)).astype(dtype) + 9 for steps in (100, 250, 37)]
    build_here(
        save_episodes(tmp_path / "in", arrays),
        tmp_path / "out",
        window_length=5,
        windows_per_record=per_record,
        num_shards=3,
    )
    values = wide(read(tmp_path / "out", normalize=True)["window"]).reshape(-1, 2)
    assert len(values) == 5 * (20 + 50 + 7)
    assert values.mean(0) == pytest.approx([0, 0], abs=ROUNDING[dtype])
    assert values.std(0) == pytest.approx([1, 1], rel=ROUNDING[dtype])


def test_padded_windows_count_real_steps_alone(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    random = np.random.default_rng(3)
    arrays = [(random.standard_normal((steps, 2)) * 4 + 100).astype(np.float32) for steps in (13, 6, 3, 22)]
    build_here(
        save_episodes(tmp_path / "in", arrays), tmp_path / "out", window_length=5, tail="pad", windows_per_record=2
    )
    epoch = read(tmp_path / "out", normalize=True)
    real = epoch["mask"]
    assert real.sum() == sum(map(len, arrays))
    assert wide(epoch["window"][real]).mean(0) == pytest.approx([0, 0], abs=1e-5)
    assert wide(epoch["window"][real]).std(0) == pytest.approx([1, 1], rel=1e-5)
    assert not epoch["window"][~real].any()
    assert epoch["window"][real].all()


@pytest.mark.parametrize("step_shape", [(), (2,), (2, 2), (1, 1, 2)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_padded_steps_stay_0(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str, step_shape: tuple[int, ...]
) -> None:
    array = 5 + np.random.default_rng(4).random((7, *step_shape)).astype(np.float32)
    build_here(
        save_episodes(tmp_path / "in", [array]), tmp_path / "out", window_length=4, tail="pad", dtype={"window": dtype}
    )
    epoch = read(tmp_path / "out", normalize=True)
    assert epoch["mask"].tolist() == [[True] * 4, [True] * 3 + [False]]
    assert not wide(epoch["window"][1, 3]).any()
    assert wide(epoch["window"][epoch["mask"]]).any(axis=tuple(range(1, 1 + len(step_shape)))).all()
    spec = load(tmp_path / "out", batch_size=2, normalize=True).element_spec
    assert spec["window"].shape == (2, 4, *step_shape)
    assert spec["window"].dtype == tf.as_dtype(DTYPES[dtype])


def test_in_numbers(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    inputs = save_episodes(tmp_path / "in", [np.array([[1, 7], [3, 7], [1, 7], [3, 7], [2, 7]], np.float32)])
    build_here(inputs, tmp_path / "out", window_length=2, tail="pad")
    window = read(tmp_path / "out", normalize=True)["window"]
    unit = 1 / np.sqrt(0.8)
    expected = [[[-unit, 0], [unit, 0]], [[-unit, 0], [unit, 0]], [[0, 0], [0, 0]]]
    np.testing.assert_allclose(window, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("constant", [0.0, 0.1, -3.0, 1e4])
def test_a_constant_component_becomes_0(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str, constant: float
) -> None:
    array = np.random.default_rng(5).standard_normal((3000, 2))
    array[:, 0] = constant
    build_here(
        save_episodes(tmp_path / "in", [array.astype(np.float32)]),
        tmp_path / "out",
        window_length=3,
        shift=7,
        dtype={"window": dtype},
    )
    values = wide(read(tmp_path / "out", normalize=True)["window"])
    assert np.isfinite(values).all()
    assert not values[..., 0].any()
    assert values[..., 1].std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("dtype", "apart"),
    [
        ("float64", 1e-300),
        ("float32", 1e-30),
        ("float32", 1e-41),
        ("float64", 1e-310),
    ],
)
def test_a_deviation_next_to_nothing_stays_finite(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str, apart: float
) -> None:
    array = np.zeros((8, 1), dtype)
    array[::2] = apart
    assert array.any()
    build_here(save_episodes(tmp_path / "in", [array]), tmp_path / "out", window_length=4)
    assert np.isfinite(read(tmp_path / "out", normalize=True)["window"]).all()


def test_large_float64s_stay_precise(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    array = 1e9 + np.random.default_rng(6).random((400, 2))
    build_here(save_episodes(tmp_path / "in", [array]), tmp_path / "out", window_length=4)
    values = read(tmp_path / "out", normalize=True)["window"].reshape(-1, 2)
    np.testing.assert_allclose(values, (array - array.mean(0)) / array.std(0), atol=1e-5)
    assert values.std(0) == pytest.approx([1, 1], rel=1e-6)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, build_here: BuildHere) -> Path:
    """Floats, integers, booleans, complex numbers and values of the episode, in two splits."""
    root = tmp_path_factory.mktemp("mixed")
    random = np.random.default_rng(7)
    episodes = [
        {
            "half": (random.standard_normal((steps, 2)) * 2 + i).astype(np.float16),
            "single": (random.standard_normal(steps) * 3 + 10 * i).astype(np.float32),
            "double": random.standard_normal((steps, 1, 3)) + i,
            "int": random.integers(0, 200, (steps, 3)).astype(np.uint8),
            "flag": random.integers(0, 2, steps).astype(bool),
            "wave": random.standard_normal((steps, 2)).astype(np.complex64),
            "gain": np.float32(1000 + i),
            "count_of": np.int64(-i),
        }
        for i, steps in enumerate([30, 22, 41, 17, 25, 38])
    ]
    build_here(
        save_archives(root / "in", episodes),
        root / "out",
        window_length=5,
        shift=5,
        splits={"test": "0.5", "train": "0.5"},
    )
    return root / "out"


def test_what_is_no_float_along_time_is_left_alone(mixed: Path) -> None:
    plain, normal = read(mixed), read(mixed, normalize=True)
    assert list(plain) == list(normal)
    for name in ("int", "flag", "wave", "gain", "count_of"):
        assert plain[name].dtype == normal[name].dtype
        assert np.array_equal(plain[name], normal[name])
    for name in ("half", "single", "double"):
        assert plain[name].dtype == normal[name].dtype
        assert not np.array_equal(plain[name], normal[name])


def test_every_split_is_standardized_as_train_is(mixed: Path) -> None:
    train = read(mixed)
    for split in ("train", "test"):
        plain, normal = read(mixed, split), read(mixed, split, normalize=True)
        for name, rounding in (("half", 4e-3), ("single", 1e-5), ("double", 1e-12)):
            known = wide(train[name]).reshape(-1, 1 if name == "single" else train[name].shape[-1])
            mean, std = (known.mean(), known.std()) if name == "single" else (known.mean(0), known.std(0))
            np.testing.assert_allclose(
                wide(normal[name]), (wide(plain[name]) - mean) / std, rtol=rounding, atol=rounding
            )
    assert abs(wide(read(mixed, "test", normalize=True)["single"]).mean()) > 1e-3


def test_a_component_constant_in_train_is_0_in_test_too(tmp_path: Path, build_here: BuildHere) -> None:
    root = tmp_path / "in"
    for split, value in (("train", 2.0), ("test", 5.0)):
        (root / split).mkdir(parents=True)
        np.save(root / split / "a.npy", np.full((8, 1), value, np.float32))
    build_here(str(root), tmp_path / "out", window_length=4, splits="dirs")
    assert not read(tmp_path / "out", "test", normalize=True)["window"].any()
    assert (read(tmp_path / "out", "test")["window"] == 5).all()


def test_map_fn_comes_after_it(mixed: Path) -> None:
    def double(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return batch | {"single": batch["single"] * 2}

    normal, mapped = read(mixed, normalize=True), read(mixed, normalize=True, map_fn=double)
    assert np.array_equal(mapped["single"], normal["single"] * 2)
    assert np.array_equal(mapped["half"], normal["half"])


@pytest.mark.parametrize("targets", ["same", 2, "single", "gain"])
def test_targets_come_after_it(mixed: Path, targets: Any) -> None:
    def first(**options: Any) -> Any:
        return next(load(mixed, batch_size=6, seed=1, normalize=True, **options).as_numpy_iterator())

    whole, (x, y) = first(), first(targets=targets)
    if targets == 2:
        assert np.array_equal(x["single"], whole["single"][:, :-2])
        assert np.array_equal(y["single"], whole["single"][:, -2:])
    elif targets == "same":
        assert all(np.array_equal(x[name], whole[name]) and np.array_equal(y[name], whole[name]) for name in whole)
    else:
        assert np.array_equal(y, whole[targets])
        assert np.array_equal(x["half"], whole["half"])


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
def test_nothing_to_normalize_is_an_error(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str
) -> None:
    build_here(save_episodes(tmp_path / "in", [np.ones(8, dtype)]), tmp_path / "out", window_length=4)
    with pytest.raises(OptionError, match="normalize=True has nothing to do: no feature along time is a float"):
        load(tmp_path / "out", batch_size=2, normalize=True)


def test_a_float_of_the_episode_is_nothing_to_normalize(tmp_path: Path, build_here: BuildHere) -> None:
    inputs = save_archives(tmp_path / "in", [{"steps": np.arange(8), "gain": np.float32(3)}])
    build_here(inputs, tmp_path / "out", window_length=4)
    with pytest.raises(OptionError, match="no feature along time is a float"):
        load(tmp_path / "out", batch_size=2, normalize=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_spoils_no_other(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str, bad: float
) -> None:
    array = np.random.default_rng(8).standard_normal((40, 2)).astype(np.float32) + 3
    array[13, 1] = bad
    build_here(save_episodes(tmp_path / "in", [array]), tmp_path / "out", window_length=4, dtype={"window": dtype})
    values = wide(read(tmp_path / "out", normalize=True)["window"]).reshape(-1, 2)
    assert np.array_equal(~np.isfinite(values), ~np.isfinite(array))
    stored = wide(array.astype(DTYPES[dtype]))
    kept = np.delete(stored[:, 1], 13)
    expected = (np.delete(stored[:, 1], 13) - kept.mean()) / kept.std()
    np.testing.assert_allclose(np.delete(values[:, 1], 13), expected, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


def test_a_feature_without_any_finite_value_stays_so(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    array = np.ones((8, 2), np.float32)
    array[:, 0], array[::2, 1] = np.nan, 3
    build_here(save_episodes(tmp_path / "in", [array]), tmp_path / "out", window_length=4)
    values = read(tmp_path / "out", normalize=True)["window"]
    assert np.isnan(values[..., 0]).all()
    assert np.array_equal(values[..., 1].ravel(), [1, -1] * 4)


def real_steps(steps: int, length: int, shift: int, stride: int) -> list[int]:
    """How many real steps each window of an episode has, with tail=pad."""
    starts = [start for start in range(0, steps, shift) if start + (length - 1) * stride < steps]
    end = starts[-1] + (length - 1) * stride + 1 if starts else 0
    following = len(starts) * shift
    counts = [length] * len(starts)
    return [*counts, len(range(following, steps, stride)[:length])] if end < steps and following < steps else counts


@pytest.mark.parametrize(("length", "shift", "stride"), [(5, 5, 1), (5, 2, 1), (4, 3, 2), (3, 7, 4), (1, 2, 1)])
@pytest.mark.parametrize("per_record", [1, 3, "auto"])
def test_the_mask_is_true_where_a_step_is_real(
    tmp_path: Path,
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
    length: int,
    shift: int,
    stride: int,
    per_record: Any,
) -> None:
    steps = [1, 2, 3, 4, 5, 11, 12, 30]
    arrays = [np.full(count, 7, np.int16) for count in steps]  # no 0, so that zeros are padding
    build_here(
        save_episodes(tmp_path / "in", arrays),
        tmp_path / "out",
        window_length=length,
        shift=shift,
        stride=stride,
        tail="pad",
        windows_per_record=per_record,
    )
    epoch = read(tmp_path / "out")
    mask = epoch["mask"]
    assert (mask.dtype, mask.shape) == (bool, epoch["window"].shape)
    expected = [real for count in steps for real in real_steps(count, length, shift, stride)]
    assert mask.sum(1).tolist() == expected
    assert np.array_equal(mask, np.arange(length) < np.array(expected)[:, np.newaxis])
    assert np.array_equal(epoch["window"] == 7, mask)
    assert np.array_equal(epoch["window"] == 0, ~mask)


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("batch_size", [2, 3, 4])
def test_the_shape_of_the_mask_is_known_beforehand(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, drop: bool, batch_size: int
) -> None:
    build_here(save_episodes(tmp_path / "in", [np.ones(22)]), tmp_path / "out", window_length=4, tail="pad")
    dataset = load(tmp_path / "out", batch_size=batch_size, remainder="drop" if drop else "keep")
    batch = batch_size if drop or 6 % batch_size == 0 else None
    assert dataset.element_spec == {
        "window": tf.TensorSpec((batch, 4), tf.float64),
        "valid": tf.TensorSpec((batch,), tf.int64),
        "mask": tf.TensorSpec((batch, 4), tf.bool),
    }
    sizes = [batch_size] * (6 // batch_size) + ([6 % batch_size] if 6 % batch_size and not drop else [])
    assert [(b["mask"].shape.as_list(), len(b["window"])) for b in dataset] == [([n, 4], n) for n in sizes]


@pytest.mark.parametrize("tail", ["drop", "align"])
def test_there_is_no_mask_where_no_window_is_padded(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, tail: str
) -> None:
    build_here(save_episodes(tmp_path / "in", [np.ones(22)]), tmp_path / "out", window_length=4, tail=tail)
    assert set(load(tmp_path / "out", batch_size=4).element_spec) == {"window"}


def test_the_spec_of_every_kind_of_feature(mixed: Path) -> None:
    dataset = load(mixed, batch_size=4, remainder="drop", normalize=True)
    expected = {
        "count_of": ((4,), "int64"),
        "double": ((4, 5, 1, 3), "float64"),
        "flag": ((4, 5), "bool"),
        "gain": ((4,), "float32"),
        "half": ((4, 5, 2), "float16"),
        "int": ((4, 5, 3), "uint8"),
        "single": ((4, 5), "float32"),
        "wave": ((4, 5, 2), "complex64"),
    }
    assert {name: (tuple(spec.shape), spec.dtype.name) for name, spec in dataset.element_spec.items()} == expected
    batch = next(dataset.as_numpy_iterator())
    assert {name: (values.shape, values.dtype.name) for name, values in batch.items()} == expected


def test_bfloat16_arrives_as_such(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    inputs = save_episodes(tmp_path / "in", [np.arange(8, dtype=np.float32)])
    build_here(inputs, tmp_path / "out", window_length=4, dtype={"window": "bfloat16"})
    window = read(tmp_path / "out", normalize=True)["window"]
    assert window.dtype == ml_dtypes.bfloat16


def test_only_the_named_features_are_normalized(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "a.npz", x=np.arange(8.0), y=np.arange(8.0), z=np.arange(8))
    build_here(str(tmp_path / "in"), tmp_path / "out", window_length=4)
    plain, named = read(tmp_path / "out"), read(tmp_path / "out", normalize=["x"])
    assert named["y"].tolist() == plain["y"].tolist()
    assert named["x"].tolist() == ((plain["x"] - 3.5) / np.arange(8.0).std()).tolist()
    for wrong, message in (
        (["z"], "normalize names 'z', which is no float along time: x, y"),
        (["w"], "normalize names 'w'"),
        ("x", "normalize must be True, False or a sequence of features"),
        ([], "normalize must be True, False or a sequence of features"),
    ):
        with pytest.raises(OptionError, match=message):
            load(tmp_path / "out", batch_size=2, normalize=wrong)


@pytest.mark.parametrize("option", ["shuffle", "verify", "provenance"])
def test_a_switch_must_be_true_or_false(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, option: str
) -> None:
    build_here(save_episodes(tmp_path / "in", [np.ones(8)]), tmp_path / "out", window_length=4)
    for wrong in ("False", 1000, None):
        with pytest.raises(OptionError, match=f"{option} must be True or False, not"):
            load(tmp_path / "out", batch_size=2, **{option: wrong})
