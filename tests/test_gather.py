"""Windows copied out of shards: every kind of window and record against brute force, damage, threads, lifetimes."""

import gc
import os
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from shards import Dataset, Feature, ShardError, open_dataset
from shards.features import DTYPES
from shards.gather import Gatherer, Records, columns_of
from shards.record import EPISODE, START, VALID
from shards.shard_file import read_piece
from shards.windows import WindowSpec

LENGTH, SHIFT = 4, 3
STEPS = (31, 4, 3, 17, 58)
SPEAKERS = ("bob", "ann", "bob", "eve", "ann")


def episode(number: int) -> dict[str, np.ndarray]:
    """Arrays along time and values of the whole episode."""
    random, steps = np.random.default_rng(number), STEPS[number]
    return {
        "pos": random.normal(size=(steps, 2)).astype("f4"),
        "image": random.integers(0, 256, (steps, 2, 3), np.uint8),
        "done": random.integers(0, 2, steps).astype(bool),
        "long": random.integers(-(2**60), 2**60, steps),
        "gain": np.float64(random.normal()),
        "mass": np.float32(random.normal()),
        "id": np.int32(-number),
        "code": np.int64(-(2**62) + number),
        "good": np.bool_(number % 2),
    }


EPISODES = [episode(number) for number in range(len(STEPS))]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("episodes")
    (folder / "in").mkdir()
    for number, arrays in enumerate(EPISODES):
        np.savez(folder / "in" / f"e{number}.npz", **arrays)
    lines = (f"e{number}.npz,{speaker},{number - 2}\n" for number, speaker in enumerate(SPEAKERS))
    (folder / "labels.csv").write_text("path,speaker,level\n" + "".join(lines))
    return str(folder)


def build(build_here: BuildHere, inputs: str, output: Path, **options: Any) -> Dataset:
    chosen = {"window_length": LENGTH, "shift": SHIFT, "num_shards": 2, "labels": f"{inputs}/labels.csv", **options}
    return build_here(f"{inputs}/in", output, **chosen)


def expected(spec: WindowSpec) -> dict[tuple[int, int], dict[str, Any]]:
    """{(episode, first step): {feature: the bytes of its array}}, of every window there is."""
    windows = {}
    for number, arrays in enumerate(EPISODES):
        steps = STEPS[number]
        for i in range(int(spec.count(steps))):
            start = int(spec.start(i, steps))
            held = [step for step in range(start, start + spec.extent, spec.stride) if step < steps]
            window = {"speaker": ["ann", "bob", "eve"].index(SPEAKERS[number]), "level": number - 2}
            for name, array in arrays.items():
                if array.shape:
                    cut = np.zeros((spec.length, *array.shape[1:]), array.dtype)
                    cut[: len(held)] = array[held]
                    window[name] = cut.tobytes()
                else:
                    window[name] = array.tobytes()
            windows[number, start] = window | ({"valid": len(held)} if spec.tail == "pad" else {})
    return windows


def found(dataset: Dataset) -> dict[tuple[int, int], dict[str, Any]]:
    (windows,) = dataset.values()
    where, batch = windows.provenance(), windows[:]
    assert [*batch] == [column.name for column in columns_of(dataset.manifest)]
    keys = list(zip(where["episode"].tolist(), where["start"].tolist(), strict=True))
    assert len(set(keys)) == len(keys)
    numbers = {"speaker", "level", "valid"}
    return {
        key: {name: int(values[i]) if name in numbers else values[i].tobytes() for name, values in batch.items()}
        for i, key in enumerate(keys)
    }


@pytest.mark.parametrize("tail", ["drop", "pad", "align"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shift", [1, 3, 7, 11])
@pytest.mark.parametrize("per_record", [1, 3, "auto"])
def test_windows_of_several_features_are_those_of_the_definition(
    inputs: str, tmp_path: Path, build_here: BuildHere, tail: Any, stride: int, shift: int, per_record: Any
) -> None:
    options = {"shift": shift, "stride": stride, "tail": tail, "windows_per_record": per_record}
    dataset = build(build_here, inputs, tmp_path / "out", **options)

    assert found(dataset) == expected(WindowSpec(LENGTH, shift, stride, tail))
    (windows,) = dataset.values()
    every, where = windows[:], windows.provenance()
    for i in (0, len(windows) // 2, -1):
        assert {name: value.tobytes() for name, value in windows[i].items()} == {
            name: values[i].tobytes() for name, values in every.items()
        }
        assert windows.locate(i) == (f"e{where['episode'][i]}.npz", where["start"][i])


def test_values_have_the_dtypes_and_shapes_of_their_features(
    inputs: str, tmp_path: Path, build_here: BuildHere
) -> None:
    for per_record in (1, 2):
        out = tmp_path / f"out{per_record}"
        windows = build(build_here, inputs, out, windows_per_record=per_record, tail="pad")["train"]
        shapes = {name: (str(values.dtype), values.shape[1:]) for name, values in windows[[0, 5, 1]].items()}
        assert shapes == {
            "code": ("int64", ()),
            "done": ("bool", (4,)),
            "gain": ("float64", ()),
            "good": ("bool", ()),
            "id": ("int32", ()),
            "image": ("uint8", (4, 2, 3)),
            "long": ("int64", (4,)),
            "mass": ("float32", ()),
            "pos": ("float32", (4, 2)),
            "speaker": ("int64", ()),
            "level": ("int64", ()),
            "valid": ("int64", ()),
        }
        assert {name: (str(value.dtype), value.shape) for name, value in windows[3].items()} == shapes
        assert {name: len(values) for name, values in windows[[]].items()} == dict.fromkeys(shapes, 0)
        assert windows[0]["code"].ndim == 0


def test_the_classes_of_a_label_are_in_the_manifest(inputs: str, tmp_path: Path, build_here: BuildHere) -> None:
    dataset = build(build_here, inputs, tmp_path / "out")

    speaker, level = dataset.manifest.features[-2:]
    assert speaker == Feature("speaker", "int64", (), ("ann", "bob", "eve"))
    assert level == Feature("level", "int64", ())
    windows = dataset["train"]
    named = [speaker.classes[i] for i in windows[:]["speaker"]]
    assert named == [SPEAKERS[number] for number in windows.provenance()["episode"]]


def test_columns_are_the_features_and_what_was_asked_for(inputs: str, tmp_path: Path, build_here: BuildHere) -> None:
    plain = build(build_here, inputs, tmp_path / "plain", windows_per_record=3).manifest
    padded = build(build_here, inputs, tmp_path / "padded", tail="pad").manifest

    assert columns_of(plain) == plain.features
    assert columns_of(plain, provenance=True) == (*plain.features, EPISODE, START)
    assert columns_of(padded) == (*padded.features, VALID)
    assert columns_of(padded, provenance=True) == (*padded.features, VALID, EPISODE, START)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_record", [1, 2])
@pytest.mark.parametrize("columns", [1, 5000])  # the second one makes windows that are copied one by one
def test_every_dtype_comes_back_bit_for_bit(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str, per_record: int, columns: int
) -> None:
    raw = np.random.default_rng(0).integers(0, 256, 9 * columns * DTYPES[dtype].itemsize, np.uint8)
    array = (raw & 1 if dtype == "bool" else raw).view(DTYPES[dtype]).reshape(9, columns)
    windows = build_here(
        save_episodes(tmp_path / "in", [array]),
        tmp_path / "out",
        window_length=4,
        shift=1,
        windows_per_record=per_record,
        tail="pad",
        features=("window",),
        dtype={"window": dtype},
    )["train"]
    starts, batch = windows.provenance()["start"], windows[:]

    assert batch["window"].dtype == DTYPES[dtype]
    assert sorted(starts.tolist()) == list(range(6))
    for start, window in zip(starts, batch["window"], strict=True):
        assert window.tobytes() == array[start : start + 4].tobytes()


def gathered(dataset: Dataset, columns: Sequence[Feature], places: np.ndarray) -> list[np.ndarray]:
    """Of windows given by their numbers; only one shard is kept in memory, so that shards come and go all along."""
    windows, nbytes = dataset["train"], dataset.manifest.layout.record_bytes

    def read(i: int) -> Records:
        raw = np.empty((windows.shards[i].records, nbytes), np.uint8)
        read_piece(windows.shards[i], raw)
        return Records(dataset.manifest, windows.shards[i], raw)

    shards = np.searchsorted(windows.split.firsts, places, side="right") - 1
    outs = [np.empty((len(places), *column.shape), column.numpy_dtype) for column in columns]
    gatherer = Gatherer(dataset.manifest, columns)
    gatherer.gather(lru_cache(1)(read), shards, places - windows.split.firsts[shards], outs)
    return outs


@pytest.mark.parametrize("per_record", [1, 3])
@pytest.mark.parametrize("names", [("start",), ("pos", "image"), ("speaker", "gain", "episode"), ("valid", "long")])
def test_any_columns_are_gathered_from_any_places(
    inputs: str, tmp_path: Path, build_here: BuildHere, per_record: int, names: tuple[str, ...]
) -> None:
    dataset = build(build_here, inputs, tmp_path / "out", windows_per_record=per_record, tail="pad", num_shards=3)
    windows = dataset["train"]
    every = {**windows[:], **windows.provenance()}
    columns = [
        next(column for column in columns_of(dataset.manifest, provenance=True) if column.name == name)
        for name in names
    ]
    places = np.random.default_rng(0).integers(0, len(windows), 500)

    outs = gathered(dataset, columns, places)

    for column, out in zip(columns, outs, strict=True):
        assert out.tobytes() == every[column.name][places].tobytes()


@pytest.mark.parametrize("per_record", [1, 3])
def test_threads_gather_side_by_side(inputs: str, tmp_path: Path, build_here: BuildHere, per_record: int) -> None:
    dataset = build(build_here, inputs, tmp_path / "out", windows_per_record=per_record, num_shards=4, shift=1)
    windows, columns = dataset["train"], columns_of(dataset.manifest, provenance=True)
    every = {**windows[:], **windows.provenance()}

    def gather(seed: int) -> bool:
        places = np.random.default_rng(seed).integers(0, len(windows), 300)
        outs = gathered(dataset, columns, places)
        return all(
            out.tobytes() == every[column.name][places].tobytes() for column, out in zip(columns, outs, strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(gather, range(64)))


@pytest.mark.parametrize("per_record", [1, 3])
def test_threads_share_windows(inputs: str, tmp_path: Path, build_here: BuildHere, per_record: int) -> None:
    out = tmp_path / "out"
    build(build_here, inputs, out, windows_per_record=per_record, num_shards=4)
    windows, fresh = open_dataset(out)["train"], open_dataset(out)["train"]
    every = [window["pos"].tobytes() for window in windows]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: fresh[i]["pos"].tobytes(), range(len(fresh)))) == every


def set_integer(dataset: Dataset, shard: int, record: int, name: str, value: int) -> str:
    """Change an integer of one record on disk; returns the shard's file name."""
    layout, file = dataset.manifest.layout, dataset["train"].split.shards[shard].file
    records = np.fromfile(dataset.folder / file, np.uint8).reshape(-1, layout.record_bytes)
    layout.write_integers(records[record : record + 1], name, np.array([value]))
    records.tofile(dataset.folder / file)
    return file


@pytest.mark.parametrize("tail", ["drop", "align", "pad"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", 0),
        ("count", 4),  # of three at most
        ("count", 2),  # which are possible, but then the windows are less than the manifest has
        ("count", 2**35 - 1),
        ("valid", 0),
        ("valid", 11),  # of ten steps that are stored
        ("valid", 2**35 - 1),
        ("valid", 3),  # less than the three windows need
    ],
)
def test_damage_to_a_record_of_several_windows_is_a_named_shards(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, tail: str, name: str, value: int
) -> None:
    arrays = [np.arange(10 + 9 * 4), np.arange(100, 100 + 10 + 9 * 4)]  # whole records alone
    options = {"window_length": 4, "shift": 3, "tail": tail, "windows_per_record": 3, "num_shards": 2}
    dataset = build_here(save_episodes(tmp_path / "in", arrays), tmp_path / "out", **options)
    assert (dataset.manifest.window.record_steps, dataset.manifest.windows) == (10, 30)
    assert set(dataset["train"][:]) - {"valid"} == {"window"}

    file = set_integer(dataset, 1, 2, name, value)

    windows = open_dataset(tmp_path / "out")["train"]
    assert windows[0]["window"].shape == (4,)  # in the other shard
    for read in (lambda: windows[-1], lambda: windows[:], lambda: windows.provenance(-1)):
        with pytest.raises(ShardError, match=rf"shard .*/{file} is damaged: it does not hold 15 windows as the manif"):
            read()


def test_no_damage_to_the_integers_of_shared_records_reaches_beyond_them(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    options = {"window_length": 3, "shift": 2, "stride": 2, "windows_per_record": 3}
    for tail in ("drop", "pad", "align"):
        out = tmp_path / tail
        dataset = build_here(save_episodes(tmp_path / "in", [np.arange(1, 39)]), out, tail=tail, **options)
        split = dataset["train"].split
        whole = (out / split.shards[0].file).read_bytes()
        for count in range(6):
            for valid in range(12):
                (out / split.shards[0].file).write_bytes(whole)
                set_integer(dataset, 0, 1, "count", count)
                set_integer(dataset, 0, 1, "valid", valid)
                windows = open_dataset(out)["train"]
                try:
                    read = windows[:]["window"]
                except ShardError:
                    continue
                assert ((read >= 0) & (read < 39)).all()
                assert windows.provenance()["start"].min() >= 0


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("per_record", [1, 3])
def test_windows_that_nobody_holds_close_their_files_at_once(
    inputs: str, tmp_path: Path, build_here: BuildHere, per_record: int
) -> None:
    build(build_here, inputs, tmp_path / "out", windows_per_record=per_record, num_shards=4)
    gc.collect()
    gc.disable()
    try:
        before = open_files()
        windows = open_dataset(tmp_path / "out")["train"]
        windows[:]
        windows.provenance()
        assert open_files() >= before + 4
        gone = weakref.ref(windows)
        del windows
        assert gone() is None
        assert open_files() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("per_record", [1, 3])
def test_what_was_read_outlives_the_dataset(
    inputs: str, tmp_path: Path, build_here: BuildHere, per_record: int
) -> None:
    windows = build(build_here, inputs, tmp_path / "out", windows_per_record=per_record)["train"]
    before = {name: values.tobytes() for name, values in windows[:].items()}

    read = windows[:]
    where = windows.provenance()
    for file in (tmp_path / "out").glob("*.tfrecord-*"):
        os.truncate(file, 0)
    del windows
    gc.collect()

    assert {name: values.tobytes() for name, values in read.items()} == before
    assert all(values.flags.owndata and values.flags.writeable for values in (*read.values(), *where.values()))


def test_a_label_of_one_window_does_not_take_reading_all_labels(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.arange(400)])
    (tmp_path / "labels.csv").write_text("path,level\ne000.npy,-7\n")
    options = {"window_length": 2, "shift": 1, "windows_per_record": 2, "labels": str(tmp_path / "labels.csv")}
    windows = build_here(inputs, tmp_path / "out", **options)["train"]
    assert windows[0]["level"] == -7
    decoded = []
    from shards import record

    decode = record.decode_varints
    monkeypatch.setattr(record, "decode_varints", lambda raw: decoded.append(len(raw)) or decode(raw))

    assert windows[1]["level"] == -7

    assert sum(decoded) < 20
