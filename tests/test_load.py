"""The stream: every window once an epoch, shapes known beforehand, and clear errors before training starts."""

import gc
import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere, SaveEpisodes, WindowsOf
from reader import load
from reader.ahead import SingleWindows, WholePieces
from reader.chunks import Chunks
from shards import (
    DatasetNotFoundError,
    FormatVersionError,
    ManifestError,
    OptionError,
    ShardError,
    SplitNotFoundError,
)
from shards.features import DTYPES

LENGTH, SHIFT = 8, 3


@pytest.fixture(scope="module")
def episodes() -> list[np.ndarray]:
    return [np.arange(steps * 2, dtype=np.float32).reshape(steps, 2) + 1000 * i for i, steps in enumerate([50, 20, 81])]


@pytest.fixture(scope="module", params=[1, 4], ids=["one_a_record", "four_a_record"])
def folder(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    episodes: list[np.ndarray],
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
) -> Path:
    root = tmp_path_factory.mktemp("load")
    build_here(
        save_episodes(root / "in", episodes),
        root / "out",
        window_length=LENGTH,
        shift=SHIFT,
        num_shards=4,
        windows_per_record=request.param,
        name="waves",
    )
    return root / "out"


@pytest.fixture(scope="module")
def windows(episodes: list[np.ndarray], windows_of: WindowsOf) -> dict[tuple[int, int], bytes]:
    return windows_of(episodes, LENGTH, SHIFT)


def read(dataset: tf.data.Dataset) -> dict[str, np.ndarray]:
    """One epoch, batches joined."""
    batches = list(dataset.as_numpy_iterator())
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def keys(epoch: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(epoch["episode"].tolist(), epoch["start"].tolist(), strict=True))


@pytest.mark.parametrize("batch_size", [1, 7, 45, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_holds_every_window_once_bit_for_bit(
    folder: Path, windows: dict[tuple[int, int], bytes], batch_size: int, shuffle: bool
) -> None:
    dataset = load(folder, batch_size=batch_size, shuffle=shuffle, provenance=True)
    epoch = read(dataset)
    assert sorted(keys(epoch)) == sorted(windows)
    assert {key: epoch["window"][i].tobytes() for i, key in enumerate(keys(epoch))} == windows
    assert int(dataset.cardinality()) == len(list(dataset)) == -(-len(windows) // batch_size)


def test_without_shuffling_windows_come_in_the_order_of_episodes_and_starts(
    folder: Path, windows: dict[tuple[int, int], bytes]
) -> None:
    dataset = load(folder, batch_size=10, shuffle=False, provenance=True)
    assert keys(read(dataset)) == sorted(windows)
    assert keys(read(dataset)) == sorted(windows)


def test_the_order_depends_on_seed_and_epoch_alone(folder: Path) -> None:
    def orders(seed: int) -> list[list[tuple[int, int]]]:
        dataset = load(folder, batch_size=10, seed=seed, provenance=True)
        return [keys(read(dataset)) for _ in range(3)]

    first, again, other = orders(1), orders(1), orders(2)
    assert first == again
    assert len({tuple(order) for order in first + other}) == 6


@pytest.mark.parametrize("batch_size", [3, 10])
def test_the_order_does_not_depend_on_the_batch_size(folder: Path, batch_size: int) -> None:
    assert keys(read(load(folder, batch_size=batch_size, seed=4, provenance=True))) == keys(
        read(load(folder, batch_size=1, seed=4, provenance=True))
    )


def test_each_epoch_of_fit_has_a_new_order(folder: Path, windows: dict[tuple[int, int], bytes]) -> None:
    seen: list[tuple[int, int]] = []

    def see(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        def note(episode: np.ndarray, start: np.ndarray) -> np.ndarray:
            seen.extend(zip(episode.tolist(), start.tolist(), strict=True))
            return start

        start = tf.numpy_function(note, [batch["episode"], batch["start"]], tf.int64)
        with tf.control_dependencies([start]):
            window = tf.identity(batch["window"])
        return window, window[:, 0, :1]

    model = keras.Sequential([keras.layers.Input((LENGTH, 2)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(loss="mse")
    dataset = load(folder, batch_size=16, provenance=True, targets=see)
    model.fit(dataset, epochs=3, verbose=0, shuffle=False)
    epochs = [seen[i : i + len(windows)] for i in range(0, len(seen), len(windows))]
    assert [sorted(epoch) for epoch in epochs] == [sorted(windows)] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_batches_mix_shards_and_episodes(folder: Path) -> None:
    first = next(load(folder, batch_size=15, provenance=True).as_numpy_iterator())
    assert set(first["episode"].tolist()) == {0, 1, 2}


def test_shapes_are_known_beforehand(folder: Path) -> None:
    windows = 15 + 5 + 25
    spec = load(folder, batch_size=16, provenance=True).element_spec
    assert {name: (s.shape.as_list(), s.dtype) for name, s in spec.items()} == {
        "window": ([None, LENGTH, 2], tf.float32),
        "episode": ([None], tf.int64),
        "start": ([None], tf.int64),
    }
    assert load(folder, batch_size=15).element_spec["window"].shape == (15, LENGTH, 2)
    dropped = load(folder, batch_size=16, remainder="drop")
    assert dropped.element_spec["window"].shape == (16, LENGTH, 2)
    assert [len(batch["window"]) for batch in dropped] == [16] * (windows // 16)
    assert int(dropped.cardinality()) == windows // 16


def test_targets_same_gives_one_tensor_twice(folder: Path) -> None:
    dataset = load(folder, batch_size=15, targets="same")
    assert [spec.shape for spec in dataset.element_spec] == [(15, LENGTH, 2), (15, LENGTH, 2)]
    x, y = next(iter(dataset))
    assert np.array_equal(x, y)
    assert memoryview(x).obj is not None
    assert np.shares_memory(np.asarray(memoryview(x)), np.asarray(memoryview(y)))


def test_targets_split_off_the_last_steps(folder: Path) -> None:
    whole = next(load(folder, batch_size=15, seed=3).as_numpy_iterator())["window"]
    x, y = next(load(folder, batch_size=15, seed=3, targets=3).as_numpy_iterator())
    assert np.array_equal(x, whole[:, :5])
    assert np.array_equal(y, whole[:, 5:])


def test_targets_and_map_fn_may_be_functions(folder: Path) -> None:
    def halve(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return batch | {"window": batch["window"] / 2}

    plain = next(load(folder, batch_size=15, provenance=True).as_numpy_iterator())
    x, start = next(
        load(
            folder, batch_size=15, provenance=True, map_fn=halve, targets=lambda b: (b["window"], b["start"])
        ).as_numpy_iterator()
    )
    assert np.array_equal(x, plain["window"] / 2)
    assert np.array_equal(start, plain["start"])


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("step_shape", [(), (3,), (2, 3)])
def test_every_dtype_arrives_as_it_was(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str, step_shape: tuple[int, ...]
) -> None:
    random = np.random.default_rng(5)
    nbytes = DTYPES[dtype].itemsize * int(np.prod(step_shape))
    raw = random.integers(0, 2 if dtype == "bool" else 256, (40, nbytes), np.uint8)
    array = raw.view(DTYPES[dtype]).reshape(40, *step_shape)
    build_here(save_episodes(tmp_path / "in", [array]), tmp_path / "out", window_length=5, shift=5)
    (batch,) = load(tmp_path / "out", batch_size=8, shuffle=False)
    assert batch["window"].dtype == tf.as_dtype(DTYPES[dtype])
    assert batch["window"].shape == (8, 5, *step_shape)
    assert batch["window"].numpy().tobytes() == array.tobytes()


def test_a_large_window_is_a_batch_of_its_own(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    arrays = [np.random.default_rng(i).standard_normal((70_000, 64)).astype(np.float32) for i in range(2)]
    build_here(save_episodes(tmp_path / "in", arrays), tmp_path / "out", window_length=65_536, shift=4000)
    epoch = read(load(tmp_path / "out", batch_size=3, provenance=True))
    expected = {(i, s): arrays[i][s : s + 65_536].tobytes() for i in range(2) for s in (0, 4000)}
    assert {key: epoch["window"][i].tobytes() for i, key in enumerate(keys(epoch))} == expected


def test_keeping_all_batches_keeps_their_values(folder: Path, windows: dict[tuple[int, int], bytes]) -> None:
    dataset = load(folder, batch_size=4, provenance=True)
    kept = [list(dataset) for _ in range(5)]
    for epoch in kept:
        found = {
            (int(e), int(s)): w.numpy().tobytes()
            for batch in epoch
            for e, s, w in zip(batch["episode"], batch["start"], batch["window"], strict=True)
        }
        assert found == windows


def test_two_iterators_at_once_are_two_epochs(folder: Path, windows: dict[tuple[int, int], bytes]) -> None:
    dataset = load(folder, batch_size=10, provenance=True)
    iterators: list[Iterator[Any]] = [dataset.as_numpy_iterator() for _ in range(2)]
    orders: list[list[tuple[int, int]]] = [[], []]
    for _ in range(5):
        for iterator, order in zip(iterators, orders, strict=True):
            order.extend(keys(next(iterator)))
    assert [sorted(order) for order in orders] == [sorted(windows)] * 2
    assert orders[0] != orders[1]


def test_one_epoch_follows_another_in_repeat(folder: Path, windows: dict[tuple[int, int], bytes]) -> None:
    epoch = keys(read(load(folder, batch_size=15, provenance=True).repeat(2)))
    assert sorted(epoch) == sorted(list(windows) * 2)
    assert epoch[:45] != epoch[45:]


def test_training_learns_from_the_stream(folder: Path) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((LENGTH, 2)),
            keras.layers.Rescaling(1 / 1000),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
    dataset = load(folder, batch_size=15, targets=lambda b: (b["window"], b["window"][:, -1, :1] / 1000))
    losses = model.fit(dataset, epochs=60, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < 0.01 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of 1 or more, not 0"),
        ({"batch_size": 2.0}, "batch_size must be a whole number"),
        ({"batch_size": 4, "seed": -1}, "seed must be a whole number of 0 or more"),
        ({"batch_size": 4, "pool": 0}, "pool must be a whole number of 1 or more"),
        ({"batch_size": 4, "targets": 8}, "targets=8 must leave a step to x: windows have 8 steps"),
        ({"batch_size": 4, "targets": 0}, "targets=0 must leave"),
        ({"batch_size": 4, "targets": "both"}, "targets='both' is neither \"same\" nor a feature: window"),
        ({"batch_size": 4, "targets": True}, "not True"),
        ({"batch_size": 4, "targets": "same", "provenance": True}, "provenance=True has no place"),
        ({"batch_size": 4, "epochs": 0}, "epochs must be a whole number of 1 or more, not 0"),
        ({"batch_size": 4, "epochs": 1.5}, "epochs must be a whole number of 1 or more, not 1.5"),
        ({"batch_size": 4, "epochs": True}, "epochs must be a whole number of 1 or more, not True"),
        ({"batch_size": 4, "start_step": -1}, "start_step must be a whole number of 0 or more, not -1"),
        ({"batch_size": 4, "start_step": None}, "start_step must be a whole number of 0 or more, not None"),
        ({"batch_size": 4, "remainder": "pad"}, "remainder must be one of keep, drop, repeat, not 'pad'"),
        ({"batch_size": 4, "remainder": True}, "remainder must be one of keep, drop, repeat, not True"),
        ({"batch_size": 4, "verify": "yes"}, "verify must be True or False, not 'yes'"),
        ({"batch_size": 4, "verify": 1}, "verify must be True or False, not 1"),
        ({"batch_size": 46, "remainder": "drop"}, 'remainder="drop" leaves nothing: there are 45 windows'),
    ],
)
def test_wrong_options_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load(folder, **options)


def batches_of(dataset: tf.data.Dataset) -> list[tuple[bytes, ...]]:
    """The bytes of each batch."""
    return [tuple(array.tobytes() for array in batch.values()) for batch in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("remainder", "steps"), [("keep", 5), ("drop", 4), ("repeat", 5)])
def test_a_stream_begins_at_any_step(folder: Path, shuffle: bool, remainder: Any, steps: int) -> None:
    options = {"batch_size": 10, "shuffle": shuffle, "remainder": remainder, "provenance": True}
    unbroken = load(folder, **options)
    epochs = [batches_of(unbroken) for _ in range(5)]
    assert [len(epoch) for epoch in epochs] == [steps] * 5
    for start in (0, 1, steps - 1, steps, steps + 2, 3 * steps, 4 * steps - 1):
        dataset = load(folder, start_step=start, **options)
        assert len(dataset) == dataset.steps_per_epoch == steps
        assert batches_of(dataset) == epochs[start // steps][start % steps :]
        if start // steps + 1 < len(epochs):
            assert batches_of(dataset) == epochs[start // steps + 1]  # the next one is whole


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("remainder", "steps"), [("keep", 5), ("drop", 4), ("repeat", 5)])
def test_three_epochs_are_three_iterations_joined(folder: Path, shuffle: bool, remainder: Any, steps: int) -> None:
    options = {"batch_size": 10, "shuffle": shuffle, "remainder": remainder, "provenance": True}
    unbroken = load(folder, **options)
    epochs = [batches_of(unbroken) for _ in range(6)]
    dataset = load(folder, epochs=3, **options)
    assert len(dataset) == 3 * steps
    assert dataset.steps_per_epoch == steps
    assert batches_of(dataset) == [*epochs[0], *epochs[1], *epochs[2]]
    assert batches_of(dataset) == [*epochs[3], *epochs[4], *epochs[5]]
    late = load(folder, epochs=3, start_step=steps + 2, **options)
    assert batches_of(late) == [*epochs[1][2:], *epochs[2], *epochs[3]]


def test_epochs_without_an_end_are_taken_from(folder: Path) -> None:
    unbroken = load(folder, batch_size=10, epochs=4, provenance=True)
    expected = batches_of(unbroken)
    dataset = load(folder, batch_size=10, epochs=None, provenance=True)
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert batches_of(dataset.take(17)) == expected[:17]
    assert batches_of(dataset.take(3)) == expected[5:8]  # another iteration is at least another epoch
    assert batches_of(load(folder, batch_size=10, epochs=None, start_step=7, provenance=True).take(9)) == expected[7:16]


def test_a_step_far_beyond_the_first_epoch_costs_nothing(folder: Path) -> None:
    dataset = load(folder, batch_size=10, start_step=5 * 10**15 + 4, provenance=True)
    epochs = [keys(read(dataset)) for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [5, 45]
    assert len(set(epochs[1])) == 45


def test_a_place_is_sought(folder: Path) -> None:
    dataset = load(folder, batch_size=10, provenance=True)
    epochs = [batches_of(dataset) for _ in range(3)]
    dataset.seek(1, 3)
    assert batches_of(dataset) == epochs[1][3:]
    assert batches_of(dataset) == epochs[2]
    dataset.seek(0)
    assert [batches_of(dataset) for _ in range(3)] == epochs
    derived = dataset.map(lambda batch: batch).prefetch(1)
    dataset.seek(2, 4)
    assert batches_of(derived) == epochs[2][4:]


def test_a_batch_larger_than_the_split_is_filled_with_its_windows_again(
    folder: Path, windows: dict[tuple[int, int], bytes]
) -> None:
    dataset = load(folder, batch_size=100, remainder="repeat", provenance=True)
    assert dataset.element_spec["window"].shape == (100, LENGTH, 2)
    (batch,) = dataset.as_numpy_iterator()
    found = keys(batch)
    assert sorted(found[:45]) == sorted(windows)
    assert found == (found[:45] * 3)[:100]


@pytest.mark.parametrize(
    "options", [{}, {"pool": 1}, {"epochs": 3, "start_step": 4}, {"remainder": "repeat"}, {"shuffle": False}]
)
def test_windows_that_are_read_one_by_one_are_those_of_whole_pieces(
    folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(folder, batch_size=7, seed=3, provenance=True, **options)
    monkeypatch.setattr("reader.stream.LARGE_BYTES", 0)
    single = load(folder, batch_size=7, seed=3, provenance=True, **options)
    assert [type(find_chunks(dataset)._source) for dataset in (whole, single)] == [WholePieces, SingleWindows]
    assert single.element_spec == whole.element_spec
    for _ in range(3):
        assert batches_of(single) == batches_of(whole)


@pytest.mark.parametrize(
    ("length", "options", "setting", "way"),
    [
        (4000, {}, {}, WholePieces),
        (4000, {"shuffle": False}, {}, WholePieces),
        (4096, {}, {}, SingleWindows),  # a record is 16 KiB and more
        (4096, {"shuffle": False}, {}, SingleWindows),
        (4000, {}, {"_MOST_WHOLE_BYTES": 100_000}, SingleWindows),
        (4000, {}, {"free_bytes": lambda _: 300_000}, SingleWindows),
        (4000, {}, {"free_bytes": lambda _: None}, WholePieces),
    ],
)
def test_small_windows_are_read_by_whole_pieces_if_these_fit_into_memory(
    tmp_path: Path,
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    options: dict[str, Any],
    setting: dict[str, Any],
    way: type,
) -> None:
    build_here(save_episodes(tmp_path / "in", [np.ones(50_000, "f4")]), tmp_path / "out", window_length=length)
    for name, value in setting.items():
        monkeypatch.setattr(f"reader.stream.{name}", value)
    dataset = load(tmp_path / "out", batch_size=3, **options)
    assert type(find_chunks(dataset)._source) is way
    assert sum(len(batch["window"]) for batch in dataset) == 12


def test_all_that_is_made_of_a_batch_goes_together(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [np.random.default_rng(i).normal(5, 3, (steps, 2)).astype(np.float32) for i, steps in enumerate((50, 19))]
    build_here(
        save_episodes(tmp_path / "in", arrays),
        tmp_path / "out",
        window_length=8,
        shift=3,
        tail="pad",
        num_shards=3,
        windows_per_record=4,
    )

    def twice(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        assert {*batch} == {"window", "valid", "mask"}
        return batch | {"window": 2 * batch["window"]}

    options: dict[str, Any] = {"batch_size": 4, "normalize": True, "map_fn": twice, "targets": 3}
    unbroken = load(tmp_path / "out", **options, epochs=3)
    raw = load(tmp_path / "out", batch_size=4, epochs=3)
    expected = [[array.tobytes() for array in batch] for batch in unbroken.as_numpy_iterator()]
    for large in (0, 2**14):
        monkeypatch.setattr("reader.stream.LARGE_BYTES", large)
        dataset = load(tmp_path / "out", **options, start_step=7, epochs=2)
        found = [[array.tobytes() for array in batch] for batch in dataset.as_numpy_iterator()]
        assert found == expected[7:]
        assert (dataset.steps_per_epoch, len(found)) == (5, 8)
    unbroken.seek(0)
    mean, std = (np.concatenate(arrays).mean(0, np.float64), np.concatenate(arrays).std(0, dtype=np.float64))
    for (x, y, weights), batch in zip(unbroken.as_numpy_iterator(), raw.as_numpy_iterator(), strict=True):
        real = batch["mask"][:, :, np.newaxis]
        whole = np.where(real, 2 * (batch["window"] - mean) / std, 0)
        assert np.concatenate([x, y], 1) == pytest.approx(whole, abs=1e-5)
        assert np.array_equal(weights, real[:, 5:].astype(np.float32))


@pytest.fixture
def half_precision() -> Iterator[None]:
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    yield
    keras.mixed_precision.set_dtype_policy(before)


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("remainder", ["keep", "repeat"])
def test_a_compiled_model_of_half_precision_is_trained(folder: Path, remainder: Any) -> None:
    model = keras.Sequential([keras.layers.Input((LENGTH, 2)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(loss="mse", jit_compile=True)
    dataset = load(
        folder, batch_size=10, remainder=remainder, targets=lambda b: (b["window"] / 1000, b["window"][:, 0, :1] / 1000)
    )
    losses = model.fit(dataset, epochs=2, verbose=0, shuffle=False).history["loss"]
    assert len(losses) == 2
    assert np.isfinite(losses).all()


def test_a_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"no dataset at .*nowhere.*no such folder"):
        load(tmp_path / "nowhere", batch_size=4)
    with pytest.raises(DatasetNotFoundError, match=r"holds no manifest\.json, which a build writes last"):
        load(tmp_path, batch_size=4)


def test_an_unknown_split_names_those_there_are(folder: Path) -> None:
    with pytest.raises(SplitNotFoundError, match="'waves' has no split 'test'; its splits are: train"):
        load(folder, split="test", batch_size=4)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_shard_that_was_cut_short_is_named(copy: Path) -> None:
    shard = copy / "waves-train.tfrecord-00002-of-00004"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(ShardError, match=r"waves-train\.tfrecord-00002-of-00004 has \d+ bytes where the manifest says"):
        load(copy, batch_size=4)


def test_a_shard_that_is_gone_is_named(copy: Path) -> None:
    (copy / "waves-train.tfrecord-00001-of-00004").unlink()
    with pytest.raises(ShardError, match=r"00001-of-00004 cannot be read: No such file"):
        load(copy, batch_size=4)


def test_a_newer_format_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"format_version": 2}))
    with pytest.raises(FormatVersionError, match="format version 2; this version of episode-windows reads up to 1"):
        load(copy, batch_size=4)


def test_a_damaged_manifest_is_refused(copy: Path) -> None:
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(ManifestError, match=r"manifest\.json is damaged: not JSON"):
        load(copy, batch_size=4)


def test_many_shards_open_few_files(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader.stream.LARGE_BYTES", 0)
    inputs = save_episodes(tmp_path / "in", [np.arange(900, dtype=np.int32)])
    build_here(inputs, tmp_path / "out", window_length=3, num_shards=300)
    dataset = load(tmp_path / "out", batch_size=50, shuffle=False)
    values = np.concatenate([batch["window"] for batch in dataset.as_numpy_iterator()])
    assert np.array_equal(values.ravel(), np.arange(900))
    opened = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert 0 < sum(str(tmp_path) in file for file in opened) <= 128
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.gpu
def test_batches_are_on_the_gpu(folder: Path) -> None:
    if not tf.config.list_logical_devices("GPU"):
        pytest.skip("no GPU is visible")
    batch = next(iter(load(folder, batch_size=15)))
    assert "GPU" in batch["window"].device


@pytest.mark.parametrize("targets", [None, "same", 3])
def test_tensorflow_has_nothing_to_warn_of(folder: Path, caplog: pytest.LogCaptureFixture, targets: Any) -> None:
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        assert len(list(load(folder, batch_size=15, targets=targets))) == 3
    finally:
        logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.name == "tensorflow"] == []


def test_what_a_stream_holds_goes_with_it(folder: Path, windows: dict[tuple[int, int], bytes]) -> None:
    chunks, count = _iterate_without_the_dataset(folder)
    gc.collect()
    assert count == len(windows)
    assert chunks() is None


def _iterate_without_the_dataset(folder: Path) -> tuple["weakref.ref[Chunks]", int]:
    dataset = load(folder, batch_size=10, provenance=True)
    chunks = weakref.ref(find_chunks(dataset))
    iterator = iter(dataset.take(100))
    del dataset
    gc.collect()
    return chunks, sum(len(batch["start"]) for batch in iterator)


def find_chunks(dataset: tf.data.Dataset) -> Chunks:
    found = [dataset]
    while not hasattr(found[0], "chunks"):
        found = [*found[0]._inputs(), *found[1:]]
    assert isinstance(found[0].chunks, Chunks)
    return found[0].chunks
