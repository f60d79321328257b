"""What is gathered: the same windows whichever way records hold them, and however they lie in shards."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from reader import load
from reader.ahead import SingleWindows, WholePieces
from reader.chunks import CHUNK_BYTES, CHUNK_STEPS, Chunks, steps_per_chunk
from reader.order import ShuffledOrder
from reader.steps import Steps
from shards import Dataset, open_dataset
from shards.features import DTYPES
from shards.gather import columns_of

ODD = ["uint8", "float64", "bool", "complex64", "bfloat16"]  # of one to eight bytes, some of them not aligned
STEP_SHAPES: list[tuple[int, ...]] = [(), (3,), (2, 3)]
LARGE_WINDOW = 2**14  # windows of so many bytes are copied one by one

Windows = Counter[tuple[int, int, bytes]]


def random_steps(steps: int, dtype: str, step_shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Values of any dtype, from random bytes."""
    nbytes = DTYPES[dtype].itemsize * int(np.prod(step_shape))
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, (steps, nbytes), np.uint8)
    return raw.view(DTYPES[dtype]).reshape(steps, *step_shape)


def wanted(arrays: Sequence[np.ndarray], length: int, shift: int) -> Windows:
    return Counter(
        (episode, start, array[start : start + length].tobytes())
        for episode, array in enumerate(arrays)
        for start in range(0, len(array) - length + 1, shift)
    )


def counted(batch: dict[str, np.ndarray], feature: str = "window") -> Windows:
    rows = zip(batch["episode"].tolist(), batch["start"].tolist(), batch[feature], strict=True)
    return Counter((episode, start, window.tobytes()) for episode, start, window in rows)


def opened(dataset: Dataset, feature: str = "window") -> Windows:
    windows = dataset["train"]
    return counted({**windows[:], **windows.provenance()}, feature)


def streamed(folder: Path, feature: str = "window", **options: Any) -> Windows:
    found: Windows = Counter()
    for batch in load(folder, provenance=True, **options).as_numpy_iterator():
        found += counted(batch, feature)
    return found


@pytest.mark.parametrize("dtype", ODD)
@pytest.mark.parametrize("step_shape", STEP_SHAPES)
@pytest.mark.parametrize("per_record", [1, 3])
@pytest.mark.parametrize(("shards", "large"), [(1, False), (5, False), (2, True)])
def test_windows_are_the_same_however_many_share_a_record(
    tmp_path: Path,
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
    dtype: str,
    step_shape: tuple[int, ...],
    per_record: int,
    shards: int,
    large: bool,
) -> None:
    step_bytes = DTYPES[dtype].itemsize * int(np.prod(step_shape))
    length = LARGE_WINDOW // step_bytes + 1 if large else 5
    shift = length // 3 if large else 2
    steps = [length + 6 * shift, length, length + 3 * shift + 1] if large else [40, 5, 4, 23, 31]
    arrays = [random_steps(count, dtype, step_shape, seed) for seed, count in enumerate(steps)]
    # A .npy file cannot say bfloat16, so there the steps are its values as float32, which are exact.
    saved = [np.nan_to_num(array.astype(np.float32)) for array in arrays] if dtype == "bfloat16" else arrays
    arrays = [array.astype(DTYPES[dtype]) for array in saved]
    dataset = build_here(
        save_episodes(tmp_path / "in", saved),
        tmp_path / "out",
        window_length=length,
        shift=shift,
        windows_per_record=per_record,
        num_shards=shards,
        dtype={"window": dtype},
    )
    assert dataset.manifest.window.per_record == per_record
    expected = wanted(arrays, length, shift)
    assert len(expected) == expected.total() == dataset.manifest.windows
    assert opened(dataset) == expected
    assert streamed(tmp_path / "out", batch_size=4) == expected
    assert streamed(tmp_path / "out", batch_size=4, shuffle=False) == expected


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, np.ndarray]]]:
    """Episodes of an array of each dtype and step shape, some of whose windows are small and some large."""
    root = tmp_path_factory.mktemp("archives")
    episodes = []
    for i, steps in enumerate([50, 37, 64]):
        arrays = {
            f"{dtype}{len(shape)}": random_steps(steps, dtype, shape, 100 * i + 10 * j + len(shape))
            for j, dtype in enumerate(name for name in sorted(DTYPES) if name != "bfloat16")
            for shape in STEP_SHAPES
        }
        arrays["image"] = random_steps(steps, "uint8", (29, 31, 3), i)  # windows of seven steps have 18,879 bytes
        episodes.append(arrays)
        np.savez(root / f"e{i}.npz", **arrays, number=np.int64(-i), gain=np.float64(i / 3))
    return str(root), episodes


@pytest.mark.parametrize("per_record", [1, 2, 5, "auto"])
def test_every_feature_of_an_archive_is_there_in_each_window(
    tmp_path: Path, build_here: BuildHere, archives: tuple[str, list[dict[str, np.ndarray]]], per_record: Any
) -> None:
    inputs, episodes = archives
    dataset = build_here(
        inputs,
        tmp_path / "out",
        window_length=7,
        shift=3,
        windows_per_record=per_record,
        num_shards=1 if per_record == "auto" else 3,
    )
    assert per_record != "auto" or dataset.manifest.window.per_record > 1
    seen = 0
    for batch in load(tmp_path / "out", batch_size=8, provenance=True).as_numpy_iterator():
        assert set(batch) == {*episodes[0], "number", "gain", "episode", "start"}
        for row, (episode, start) in enumerate(zip(batch["episode"].tolist(), batch["start"].tolist(), strict=True)):
            for name, array in episodes[episode].items():
                assert batch[name].dtype == array.dtype
                assert batch[name][row].tobytes() == array[start : start + 7].tobytes()
            assert (batch["number"][row], batch["gain"][row]) == (-episode, episode / 3)
            seen += 1
    assert seen == dataset.manifest.windows == 15 + 11 + 20
    for name in episodes[0]:
        assert opened(dataset, name) == wanted([arrays[name] for arrays in episodes], 7, 3)


def test_some_features_alone_are_in_the_order_asked_for(
    tmp_path: Path, build_here: BuildHere, archives: tuple[str, list[dict[str, np.ndarray]]]
) -> None:
    inputs, episodes = archives
    names = ("uint81", "float640")
    dataset = build_here(inputs, tmp_path / "out", window_length=7, shift=3, windows_per_record=4, features=names)
    assert tuple(feature.name for feature in dataset.manifest.features) == names
    assert set(load(tmp_path / "out", batch_size=8).element_spec) == set(names)
    for name in names:
        assert streamed(tmp_path / "out", name, batch_size=9) == wanted([arrays[name] for arrays in episodes], 7, 3)


def test_records_of_several_windows_are_fewer_bytes(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.random.default_rng(0).random((500, 4))])
    sizes = {
        per_record: build_here(
            inputs, tmp_path / str(per_record), window_length=32, shift=1, windows_per_record=per_record
        ).manifest.bytes
        for per_record in (1, 16, "auto")
    }
    assert sizes["auto"] <= sizes[16] < sizes[1] / 8


@pytest.mark.parametrize("per_record", [2, 7, 100])
@pytest.mark.parametrize("tail", ["drop", "pad", "align"])
def test_any_choice_of_indices_is_gathered(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, per_record: int, tail: str
) -> None:
    arrays = [random_steps(steps, "int16", (3,), steps) for steps in (41, 6, 18, 90)]
    inputs = save_episodes(tmp_path / "in", arrays)
    how = {"window_length": 6, "shift": 4, "stride": 2, "tail": tail, "num_shards": 2}
    found = build_here(inputs, tmp_path / "shared", windows_per_record=per_record, **how)["train"]
    for indices in (np.arange(len(found)), np.array([3, 0, 3, 3, -1]), np.array([len(found) - 1]), np.array([], int)):
        where, batch = found.provenance(indices), found[indices]
        for row, (episode, start) in enumerate(zip(where["episode"], where["start"], strict=True)):
            steps = arrays[episode][start::2][:6]
            assert np.array_equal(batch["window"][row, : len(steps)], steps)
            assert not batch["window"][row, len(steps) :].any()
            if tail == "pad":
                assert batch["valid"][row] == len(steps)
    one = found[-1]
    assert np.array_equal(one["window"], found[:]["window"][-1])


def test_a_chunk_is_some_steps_of_a_moderate_size() -> None:
    assert steps_per_chunk(1) == CHUNK_STEPS
    assert steps_per_chunk(CHUNK_BYTES // 2) == 2
    assert steps_per_chunk(CHUNK_BYTES) == 1
    assert steps_per_chunk(100 * CHUNK_BYTES) == 1


@pytest.mark.parametrize("per_record", [1, 4])
@pytest.mark.parametrize("every", [1, 2, 100])
@pytest.mark.parametrize(("part", "parts"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("way", ["pieces", "windows"])
def test_chunks_are_the_windows_of_their_steps(
    tmp_path: Path,
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
    per_record: int,
    every: int,
    part: int,
    parts: int,
    way: str,
) -> None:
    arrays = [np.arange(steps, dtype=np.float32) + 100 * i for i, steps in enumerate((20, 12, 31))]
    inputs = save_episodes(tmp_path / "in", arrays)
    build_here(inputs, tmp_path / "out", window_length=5, shift=2, windows_per_record=per_record, num_shards=3)
    dataset = open_dataset(tmp_path / "out")
    split, columns = dataset["train"].split, columns_of(dataset.manifest, provenance=True)
    pieces = dataset["train"].shards
    source: WholePieces | SingleWindows = WholePieces(dataset.manifest, columns, pieces, keep=2)
    if way == "windows":
        source = SingleWindows(dataset["train"], columns, pieces, dataset.manifest.layout.record_bytes, keep=2)
    order = ShuffledOrder(np.array([piece.windows for piece in pieces]), seed=5, pool=2)
    steps = Steps(len(order), 6, "repeat", part, parts)
    chunks = Chunks(source, order, columns, steps, every)
    for epoch in (0, 3):
        filled = [[a.copy() for a in chunks.fill(epoch, step)] for step in range(0, len(steps), every)]
        windows, episodes, starts = (np.concatenate(arrays) for arrays in zip(*filled, strict=True))
        shards, rows = order.at(epoch, steps.positions(0, len(steps)))
        index = split.firsts[shards] + rows
        assert len(windows) == len(steps) * 6 // parts
        assert np.array_equal(windows, dataset["train"][index]["window"])
        assert np.array_equal(episodes, dataset["train"].provenance(index)["episode"])
        assert np.array_equal(windows[:, 0], 100 * episodes + starts)
