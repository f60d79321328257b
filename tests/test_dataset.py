import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes, WindowsOf
from shards import (
    Dataset,
    DatasetNotFoundError,
    ManifestError,
    ShardError,
    SplitNotFoundError,
    Windows,
    open_dataset,
)

LENGTH, SHIFT = 5, 3
ARRAYS = [
    np.random.default_rng(seed).normal(size=(steps, 2)).astype("f4") for seed, steps in enumerate((30, 11, 47, 26))
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere) -> Dataset:
    """A dataset that no test may change: 35 windows in two splits, of three and two shards."""
    folder = tmp_path_factory.mktemp("dataset")
    return build_here(
        save_episodes(folder / "in", ARRAYS),
        folder / "demo",
        window_length=LENGTH,
        shift=SHIFT,
        splits={"train": "0.6", "test": "0.4"},
        num_shards={"train": 3, "test": 2},
    )


@pytest.fixture(scope="module")
def train(dataset: Dataset) -> Windows:
    return dataset["train"]


@pytest.fixture
def small(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> Path:
    """The folder of a dataset to damage, of 12 windows in two shards."""
    folder = save_episodes(tmp_path / "in", {"one": np.arange(7), "two": np.arange(100, 107)})
    build_here(folder, tmp_path / "small", window_length=2, shift=1, num_shards=2)
    return tmp_path / "small"


def test_a_dataset_is_a_mapping_of_its_splits(dataset: Dataset) -> None:
    assert list(dataset) == ["train", "test"]
    assert len(dataset) == 2
    assert "train" in dataset
    assert "validation" not in dataset
    assert 3 not in dataset
    assert [len(windows) for windows in dataset.values()] == [len(dataset["train"]), len(dataset["test"])]
    assert dataset["train"] is dataset["train"]
    assert dataset.manifest.windows == sum(map(len, dataset.values()))


def test_a_split_that_is_not_there_is_named(dataset: Dataset) -> None:
    with pytest.raises(SplitNotFoundError, match="'demo' has no split 'tset'; its splits are: train, test"):
        dataset["tset"]


def test_get_gives_the_default_for_a_split_that_is_not_there(dataset: Dataset) -> None:
    assert dataset.get("tset") is None
    assert dataset.get("train") is dataset["train"]


def test_all_windows_are_there_once(dataset: Dataset, windows_of: WindowsOf) -> None:
    found = {}
    for windows in dataset.values():
        where, data = windows.provenance(), windows[:]["window"]
        assert data.shape == (len(windows), LENGTH, 2)
        for episode, start, window in zip(where["episode"].tolist(), where["start"].tolist(), data, strict=True):
            assert (episode, start) not in found
            found[episode, start] = window.tobytes()

    assert found == windows_of(ARRAYS, LENGTH, SHIFT)
    assert len(found) == 35


def test_an_index_gives_one_window(train: Windows) -> None:
    window = train[4]

    assert list(window) == ["window"]
    assert window["window"].shape == (LENGTH, 2)
    assert window["window"].dtype == np.float32
    assert window["window"].tobytes() == train[:]["window"][4].tobytes()


def test_a_window_is_where_locate_says(train: Windows) -> None:
    for i in range(-len(train), len(train)):
        path, start = train.locate(i)
        array = ARRAYS[int(path.removeprefix("e").removesuffix(".npy"))]
        assert train[i]["window"].tobytes() == array[start : start + LENGTH].tobytes()


def test_negative_indices_count_from_the_end(train: Windows) -> None:
    every = train[:]["window"]

    assert np.array_equal(train[-1]["window"], every[-1])
    assert np.array_equal(train[-len(train)]["window"], every[0])
    assert np.array_equal(train[[-1, 0, -2]]["window"], every[[-1, 0, -2]])


@pytest.mark.parametrize(
    "index",
    [
        slice(None),
        slice(3),
        slice(-3, None),
        slice(None, None, 4),
        slice(None, None, -1),
        slice(9, 2, -3),
        slice(5, 5),
        slice(10**9, 2 * 10**9),
        [0],
        [3, 3, 1, -1],
        (2, 0),
        range(4),
        np.array([7, 2, 9], np.uint64),
        np.array([7, -2], np.int16),
        np.arange(10)[::-2],
    ],
    ids=str,
)
def test_many_windows_are_a_batch_in_the_order_asked_for(train: Windows, index: Any) -> None:
    rows = np.arange(len(train))[list(index) if isinstance(index, tuple | range) else index]

    batch = train[index]["window"]

    assert batch.shape == (len(rows), LENGTH, 2)
    assert np.array_equal(batch, train[:]["window"][rows])
    assert np.array_equal(train.provenance(index)["start"], train.provenance()["start"][rows])


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_batches_are_as_numpy_indexes_an_array(train: Windows, data: st.DataObject) -> None:
    size = len(train)
    index = data.draw(st.slices(size) | st.lists(st.integers(-size, size - 1), max_size=8))

    assert np.array_equal(train[index]["window"], train[:]["window"][np.array(index, int) if index == [] else index])


@pytest.mark.parametrize("index", [[], (), np.array([], np.int64), np.array([]), slice(0, 0)], ids=repr)
def test_no_indices_give_an_empty_batch(train: Windows, index: Any) -> None:
    assert train[index]["window"].shape == (0, LENGTH, 2)
    assert train[index]["window"].dtype == np.float32
    assert {name: values.tolist() for name, values in train.provenance(index).items()} == {"episode": [], "start": []}


@pytest.mark.parametrize("index", [np.int8(3), np.uint64(3), np.array(3), np.array(3, np.uint8)], ids=repr)
def test_an_integer_of_numpy_is_an_index(train: Windows, index: Any) -> None:
    assert train[index]["window"].tobytes() == train[3]["window"].tobytes()
    assert train.locate(index) == train.locate(3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32])
def test_narrow_integers_index_many_windows(
    tmp_path: Path, dtype: type, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    windows = build_here(save_episodes(tmp_path / "in", [np.arange(1000)]), tmp_path / "out", window_length=1)["train"]

    indices = np.array([0, 5, 100], dtype)

    assert windows[indices]["window"].tolist() == windows[[0, 5, 100]]["window"].tolist()
    assert windows[dtype(100)]["window"].tolist() == windows[100]["window"].tolist()
    if np.issubdtype(dtype, np.signedinteger):
        assert windows[np.array([-1, -100], dtype)]["window"].tolist() == windows[[-1, -100]]["window"].tolist()


@pytest.mark.parametrize("index", [10**6, -(10**6), [0, 10**6], 2**63], ids=repr)
def test_an_index_out_of_range_is_named(train: Windows, index: Any) -> None:
    last = index[-1] if isinstance(index, list) else index

    with pytest.raises(IndexError, match=rf"index {last} is out of range for {len(train)} windows"):
        train[index]


def test_the_first_index_out_of_range_is_the_length(train: Windows) -> None:
    with pytest.raises(IndexError, match="out of range"):
        train[len(train)]
    with pytest.raises(IndexError, match="out of range"):
        train[-len(train) - 1]
    with pytest.raises(IndexError, match="out of range"):
        train.locate(len(train))
    with pytest.raises(IndexError, match="out of range"):
        train.provenance([0, len(train)])


@pytest.mark.parametrize(
    "index",
    [
        True,
        False,
        np.True_,
        [True, False],
        np.zeros(20, bool),
        1.0,
        [0.0, 1.0],
        None,
        "0",
        "window",
        [[0, 1], [2, 3]],
        {},
    ],
    ids=repr,
)
def test_what_is_no_integer_is_no_index(train: Windows, index: Any) -> None:
    with pytest.raises(TypeError, match="an index is an integer, a slice or a 1-D array of integers, not"):
        train[index]


def test_two_dimensions_are_no_index_even_when_empty(train: Windows) -> None:
    with pytest.raises(TypeError, match="an index is an integer"):
        train[np.zeros((0, 3), int)]


def test_locate_takes_one_index(train: Windows) -> None:
    for index in ([0], slice(1), np.array([0])):
        with pytest.raises(TypeError, match="locate takes one window's index; use provenance"):
            train.locate(index)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an index is an integer"):
        train.locate(True)


def test_provenance_is_two_arrays_of_integers(train: Windows) -> None:
    where = train.provenance()

    assert list(where) == ["episode", "start"]
    assert {values.shape for values in where.values()} == {(len(train),)}
    assert {values.dtype for values in where.values()} == {np.dtype(np.int64)}
    assert train.provenance(3) == {name: values[[3]] for name, values in where.items()}
    assert train.locate(3) == (f"e{where['episode'][3]:03d}.npy", where["start"][3])


def test_a_loop_goes_through_all_windows(train: Windows) -> None:
    assert [window["window"].tobytes() for window in train] == [row.tobytes() for row in train[:]["window"]]


@pytest.mark.parametrize("index", [0, slice(None), [0, 1]], ids=repr)
def test_windows_are_copies(train: Windows, index: Any) -> None:
    before = train[:]["window"].copy()

    window = train[index]["window"]
    window[...] = -1

    assert window.flags.writeable
    assert np.array_equal(train[:]["window"], before)


def test_the_windows_lie_shuffled(train: Windows) -> None:
    where = train.provenance()
    order = np.lexsort((where["start"], where["episode"]))

    assert order.tolist() != sorted(order.tolist())
    assert len(set(where["episode"][:10].tolist())) > 1


def test_datasets_and_windows_say_what_they_are(dataset: Dataset, small: Path) -> None:
    opened = open_dataset(small)

    assert repr(opened) == f"<Dataset 'small' in {str(small)!r}: windows train=12>"
    assert repr(opened["train"]) == "<Windows 'train' of 'small': {'window': (12, 2)}>"


def test_windows_of_several_features_say_what_they_are(tmp_path: Path, build_here: BuildHere) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "a.npz", x=np.zeros((7, 2), "f4"), gain=np.float64(3))
    dataset = build_here(
        str(tmp_path / "in"), tmp_path / "out", window_length=4, shift=2, tail="pad", windows_per_record=2
    )

    assert repr(dataset["train"]) == "<Windows 'train' of 'out': {'gain': (3,), 'x': (3, 4, 2), 'valid': (3,)}>"
    assert repr(dataset).endswith("windows train=3>")


@pytest.mark.parametrize("per_record", [1, 3])
def test_an_episode_split_by_time_is_located_by_its_own_steps(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, per_record: int
) -> None:
    arrays = [np.arange(100), np.arange(1000, 1060)]
    dataset = build_here(
        save_episodes(tmp_path / "in", arrays),
        tmp_path / "out",
        window_length=5,
        shift=2,
        tail="align",
        windows_per_record=per_record,
        splits={"train": "0.7", "test": "0.3"},
        split_by="time",
    )

    assert dataset.episode_paths == ("e000.npy", "e001.npy")
    steps: dict[str, set[int]] = {}
    for name, windows in dataset.items():
        for i, window in enumerate(windows):
            path, start = windows.locate(i)
            array = arrays[int(path[3])]
            assert window["window"].tolist() == array[start : start + 5].tolist()
            steps.setdefault(name, set()).update(window["window"].tolist())
    assert not steps["train"] & steps["test"]
    assert max(steps["train"] & set(range(100))) < min(steps["test"])


def test_more_shards_are_read_than_are_kept_open(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    folder = save_episodes(tmp_path / "in", [np.arange(300)])

    windows = build_here(folder, tmp_path / "out", window_length=1, num_shards=300)["train"]

    for _ in range(2):
        assert sorted(int(window["window"][0]) for window in windows) == list(range(300))
    assert len(os.listdir("/dev/fd")) < 250


def test_a_folder_without_a_manifest_is_no_dataset(small: Path) -> None:
    (small / "manifest.json").unlink()

    with pytest.raises(DatasetNotFoundError, match=r"it holds no manifest\.json, which a build writes last"):
        open_dataset(small)


def test_a_missing_shard_is_named(small: Path) -> None:
    (small / "small-train.tfrecord-00001-of-00002").unlink()
    dataset = open_dataset(small)

    with pytest.raises(ShardError, match=r"small-train\.tfrecord-00001-of-00002 cannot be read: No such file"):
        dataset["train"]


@pytest.mark.parametrize("change", [-1, 1, -(10**6)])
def test_a_shard_of_another_size_is_named(small: Path, change: int) -> None:
    shard = small / "small-train.tfrecord-00001-of-00002"
    size = shard.stat().st_size
    os.truncate(shard, max(0, size + change))

    with pytest.raises(
        ShardError,
        match=rf"00001-of-00002 has {max(0, size + change)} bytes where the manifest says {size}: it was cut short or",
    ):
        open_dataset(small)["train"]


def test_a_shard_that_changes_after_it_was_opened_is_named(small: Path) -> None:
    windows = open_dataset(small)["train"]
    os.truncate(small / "small-train.tfrecord-00000-of-00002", 50)
    (small / "small-train.tfrecord-00001-of-00002").unlink()

    with pytest.raises(ShardError, match=r"00000-of-00002 has changed since the dataset was opened; open it again"):
        windows[0]
    with pytest.raises(ShardError, match=r"00001-of-00002 cannot be read"):
        windows[-1]


def test_a_shard_that_is_emptied_after_it_was_opened_is_named(small: Path) -> None:
    windows = open_dataset(small)["train"]
    os.truncate(small / "small-train.tfrecord-00000-of-00002", 0)

    with pytest.raises(ShardError, match=r"00000-of-00002 (cannot be read|has changed)"):
        windows[0]


def test_a_tampered_list_of_episodes_is_refused(small: Path) -> None:
    listed = small / "episodes.csv"
    listed.write_text(listed.read_text().replace("one", "two"))
    windows = open_dataset(small)["train"]

    with pytest.raises(ManifestError, match=r"episodes\.csv is not the file that the manifest describes; copy the"):
        windows.locate(0)
    assert windows[0]["window"].shape == (2,)


def test_a_missing_list_of_episodes_is_named(small: Path) -> None:
    (small / "episodes.csv").unlink()

    with pytest.raises(ManifestError, match=r"episodes\.csv cannot be read: No such file or directory; copy"):
        open_dataset(small)["train"].locate(0)


def test_episodes_are_listed_with_what_became_of_them(small: Path) -> None:
    assert (small / "episodes.csv").read_text() == (
        "episode,path,steps,split,begin,end,windows,group,left_out\n"
        "0,one.npy,7,train,0,7,6,,\n1,two.npy,7,train,0,7,6,,\n"
    )
    assert open_dataset(small).episode_paths == ("one.npy", "two.npy")


@pytest.mark.parametrize(
    "name",
    [
        "a,b",
        'say "yes"',
        "'",
        "line\nbreak",
        "carriage\rreturn",
        "both\r\n",
        "tab\tand space ",
        "form\x0cfeed",
        "vertical\x0btab",
        "file\x1cseparator",
        "next\x85line",
        "line\u2028separator",
        "paragraph\u2029separator",
        "ünïcödé",
        "=1+1",
        os.fsdecode(b"\xff\xfe"),
    ],
    ids=ascii,
)
def test_any_file_name_comes_back_from_the_list_of_episodes(
    tmp_path: Path, name: str, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    folder = save_episodes(tmp_path / "in", {name: np.arange(9), "~last": np.arange(100, 109)})

    dataset = build_here(folder, tmp_path / "out", window_length=3)

    assert dataset.episode_paths == tuple(sorted([f"{name}.npy", "~last.npy"]))
    located = {dataset["train"].locate(i) for i in range(6)}
    assert located == {(f"{path}.npy", start) for path in (name, "~last") for start in (0, 3, 6)}


def test_a_window_of_an_episode_that_there_is_not_is_a_damaged_shard(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    dataset = build_here(save_episodes(tmp_path / "in", [np.zeros(20)]), tmp_path / "out", window_length=4)
    (shard,) = dataset["train"].split.shards
    with (tmp_path / "out" / shard.file).open("r+b") as opened:
        opened.seek(dataset.manifest.layout.field("episode").offset)
        opened.write(b"\xff\xff\xff\xff\x7f")

    with pytest.raises(ShardError, match=r"window 0 of split train in .*/out is of episode 34359738367, of which"):
        open_dataset(tmp_path / "out")["train"].locate(0)
