"""Every kind of file, from disk through plan, staging and shards to `open_dataset`, in this process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from pipeline import BuildOptions, episodes, plan
from pipeline.files import file_state
from pipeline.report import describe_plan
from pipeline.tasks import SourceEpisode, Span
from shards import BuildError, Dataset, Feature, OptionError
from shards.manifest import Nonfinite

LENGTH, SHIFT = 6, 4
Arrays = Mapping[str, np.ndarray]
Save = Callable[[Path, Sequence[Arrays]], str]


def check(dataset: Dataset, episodes: Sequence[Arrays]) -> None:
    """Every feature of every window is that of its episode, bit for bit."""
    found = set()
    for split in dataset.values():
        where, values = split.provenance(), split[:]
        assert list(values) == [feature.name for feature in dataset.manifest.features]
        for row, (episode, start) in enumerate(zip(where["episode"].tolist(), where["start"].tolist(), strict=True)):
            found.add((episode, start))
            for name, batch in values.items():
                array = episodes[episode][name]
                expected = array[start : start + LENGTH] if array.ndim else array
                assert batch[row].shape == expected.shape
                assert batch[row].dtype == expected.dtype.newbyteorder("<")
                assert batch[row].tobytes() == expected.astype(batch.dtype).tobytes()
    assert found == {
        (i, start)
        for i, arrays in enumerate(episodes)
        for start in range(0, max(len(array) for array in arrays.values() if array.ndim) - LENGTH + 1, SHIFT)
    }


def several(dtype_order: str = "<", order: str = "C") -> list[dict[str, np.ndarray]]:
    """Episodes of many arrays, of which two are values of the whole episode."""
    random = np.random.default_rng(7)
    return [
        {
            "image": np.asarray(random.integers(0, 256, (steps, 4, 3, 2)), "u1", order=order),
            "pose": np.asarray(random.standard_normal((steps, 5)), f"{dtype_order}f4", order=order),
            "action": random.integers(-9, 9, steps).astype(f"{dtype_order}i8"),
            "phase": np.asarray(random.standard_normal((steps, 2)), f"{dtype_order}c16", order=order),
            "done": random.integers(0, 2, steps).astype(bool),
            "score": np.array(random.standard_normal(), f"{dtype_order}f8"),
            "seed": np.array(random.integers(-(2**62), 2**62), f"{dtype_order}i8"),
        }
        for steps in (19, 6, 5, 33)
    ]


def save_npz(folder: Path, episodes: Sequence[Arrays], compressed: bool = False) -> str:
    folder.mkdir()
    for i, arrays in enumerate(episodes):
        (np.savez_compressed if compressed else np.savez)(folder / f"{i}.npz", **arrays)
    return str(folder)


def save_records(folder: Path, episodes: Sequence[Arrays], order: str) -> str:
    """Episodes as `.npy` files with fields, aligned as C does it or packed, without the values of whole episodes."""
    folder.mkdir()
    for i, arrays in enumerate(episodes):
        along = {name: array for name, array in arrays.items() if array.ndim}
        fields = np.dtype([(name, array.dtype, array.shape[1:]) for name, array in along.items()], align=order == "C")
        records = np.zeros(len(arrays["action"]), fields)
        for name, array in along.items():
            records[name] = array
        np.save(folder / f"{i}.npy", records)
    return str(folder)


@pytest.mark.parametrize("compressed", [False, True], ids=["stored", "compressed"])
@pytest.mark.parametrize("dtype_order", "<>")
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("per_record", [1, 3])
def test_archives_come_back(
    tmp_path: Path, build_here: BuildHere, compressed: bool, dtype_order: str, order: str, per_record: int
) -> None:
    episodes = several(dtype_order, order)
    inputs = save_npz(tmp_path / "in", episodes, compressed)

    dataset = build_here(
        inputs, tmp_path / "out", window_length=LENGTH, shift=SHIFT, num_shards=2, windows_per_record=per_record
    )

    check(dataset, episodes)
    assert dataset.manifest.features == (
        Feature("action", "int64", (6,)),
        Feature("done", "bool", (6,)),
        Feature("image", "uint8", (6, 4, 3, 2)),
        Feature("phase", "complex128", (6, 2)),
        Feature("pose", "float32", (6, 5)),
        Feature("score", "float64", ()),
        Feature("seed", "int64", ()),
    )
    assert [each.feature for each in dataset.manifest.statistics] == ["action", "done", "image", "pose"]


@pytest.mark.parametrize("dtype_order", "<>")
@pytest.mark.parametrize("align", ["C", "packed"])
def test_arrays_with_fields_come_back(tmp_path: Path, build_here: BuildHere, dtype_order: str, align: str) -> None:
    episodes = several(dtype_order)
    inputs = save_records(tmp_path / "in", episodes, align)

    dataset = build_here(inputs, tmp_path / "out", window_length=LENGTH, shift=SHIFT, windows_per_record="auto")

    check(dataset, episodes)


def test_files_of_all_kinds_together_make_one_dataset(tmp_path: Path, build_here: BuildHere) -> None:
    kinds = [several("<", "C"), several(">", "C"), several(">", "F"), several("<", "F")]
    along = ("action", "done", "image", "phase", "pose")
    episodes = [{name: kinds[i][i][name] for name in along} for i in range(4)]
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "0.npz", **episodes[0])
    np.savez_compressed(folder / "1.npz", **episodes[1])
    np.savez(folder / "2.npz", **episodes[2])
    save_records(tmp_path / "records", [episodes[3]], "packed")
    (tmp_path / "records/0.npy").rename(folder / "3.npy")

    dataset = build_here(str(folder), tmp_path / "out", window_length=LENGTH, shift=SHIFT)

    check(dataset, episodes)


def test_features_come_in_the_order_asked_for(tmp_path: Path, build_here: BuildHere) -> None:
    episodes = several()
    inputs = save_npz(tmp_path / "in", episodes)

    dataset = build_here(inputs, tmp_path / "out", window_length=LENGTH, shift=SHIFT, features=("seed", "pose", "done"))

    check(dataset, [{name: arrays[name] for name in ("done", "pose", "seed")} for arrays in episodes])
    assert [feature.name for feature in dataset.manifest.features] == ["seed", "pose", "done"]
    by_name = build_here(inputs, tmp_path / "all", window_length=LENGTH, shift=SHIFT)
    assert dataset.manifest.source.bytes == 58 * (4 * 5 + 1)
    assert by_name.manifest.source.bytes == 58 * (24 + 20 + 8 + 32 + 1)


def test_features_are_stored_as_other_dtypes(tmp_path: Path, build_here: BuildHere) -> None:
    episodes = [{name: arrays[name] for name in ("pose", "action", "score", "done")} for arrays in several(">")]
    inputs = save_npz(tmp_path / "in", episodes)
    dtypes = {"pose": "bfloat16", "action": "int8", "score": "float32", "done": "uint8"}

    dataset = build_here(inputs, tmp_path / "out", window_length=LENGTH, shift=SHIFT, dtype=dtypes)

    numpy = dtypes | {"pose": ml_dtypes.bfloat16}
    check(dataset, [{name: array.astype(numpy[name]) for name, array in sorted(a.items())} for a in episodes])
    assert {feature.name: feature.dtype for feature in dataset.manifest.features} == dtypes
    assert dataset.manifest.source.bytes == 58 * (2 * 5 + 1 + 1)  # as they are stored


def test_what_overflows_becomes_infinite_and_is_told(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    array = np.zeros((30, 2))
    array[11, 1], array[12, 0], array[13, 0] = 65520, -1e300, 65519
    inputs = save_episodes(tmp_path / "in", [np.zeros((30, 2)), array])

    dataset = build_here(inputs, tmp_path / "out", window_length=6, dtype={"window": "float16"})

    assert dataset.manifest.nonfinite == (Nonfinite(1, "window", 2, 11),)
    total = dataset.manifest.statistics[0].total
    assert (total.count, total.infinite, total.max) == (118, 2, 65504)


def test_an_integer_out_of_range_fails_the_build_by_file_and_step(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    array = np.zeros((30, 2), "i8")
    array[17, 1] = 2**15
    inputs = save_episodes(tmp_path / "in", [np.zeros((30, 2), "i8"), array])

    with pytest.raises(BuildError, match=r"/in/e001\.npy holds 32768 in step 17 of window, which int16 cannot store\n"):
        build_here(inputs, tmp_path / "out", window_length=6, dtype={"window": "int16"})
    with pytest.raises(OptionError, match="dtype cannot store window, which is int64, as bool"):
        build_here(inputs, tmp_path / "out", window_length=6, dtype={"window": "bool"})
    assert len(build_here(inputs, tmp_path / "less", window_length=16, dtype={"window": "int16"})["train"]) == 2


def test_labels_come_back_with_every_window(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    inputs = save_episodes(
        tmp_path / "in", {"a": np.zeros(20), "b/c": np.zeros(20), "d": np.zeros(20), "e": np.zeros(3)}
    )
    (tmp_path / "labels.csv").write_text(
        "path,number,reward,task,ratio\n"
        "b/c.npy,-9223372036854775808,0.1,push,1\n"
        "a.npy,9223372036854775807,nan,pick,2\n"
        "./d.npy,0,-inf,push,3\n"
        "e.npy,5,1,sleep,3\n"
    )

    dataset = build_here(
        inputs,
        tmp_path / "out",
        window_length=LENGTH,
        shift=SHIFT,
        labels=str(tmp_path / "labels.csv"),
        dtype={"ratio": "float16"},
        windows_per_record=2,
    )

    assert dataset.manifest.features[1:] == (
        Feature("number", "int64", ()),
        Feature("reward", "float64", ()),
        Feature("task", "int64", (), classes=("pick", "push", "sleep")),
        Feature("ratio", "float16", ()),
    )
    split = dataset["train"]
    values, episode = split[:], split.provenance()["episode"]
    assert values["number"].tolist() == [[2**63 - 1, -(2**63), 0][i] for i in episode]
    assert values["task"].tolist() == [[0, 1, 1][i] for i in episode]
    assert values["ratio"].tolist() == [[2, 1, 3][i] for i in episode]
    assert values["ratio"].dtype == np.float16
    assert np.array_equal(values["reward"], np.array([np.nan, 0.1, -np.inf])[episode], equal_nan=True)
    assert dataset.manifest.nonfinite == (Nonfinite(0, "reward", 1, 0), Nonfinite(2, "reward", 1, 0))
    assert (tmp_path / "out/task.labels.txt").read_text().split() == ["pick", "push", "sleep"]


# What is measured


def load_array(file: str, name: str) -> np.ndarray:
    with np.load(file) as loaded:
        return np.asarray(loaded[name])


def save_spoilt(folder: Path) -> str:
    """Ten episodes of 50 steps, with NaN and infinity in the fourth and, in places, in the last step."""
    folder.mkdir()
    for i in range(10):
        x = np.arange(100, dtype=">f4").reshape(50, 2) + 1000 * i
        y, gain = np.full(50, i), np.float32(i)
        if i == 3:
            x[[14, 15, 40], [1, 0, 0]] = np.nan, -np.inf, np.inf
            gain = np.float32(np.nan)
        x[49, 0] = np.nan
        np.savez(folder / f"{i}.npz", x=x, y=y, gain=gain)
    return str(folder)


@pytest.mark.parametrize("per_record", [1, 4])
@pytest.mark.parametrize("splits", [{"train": "1"}, {"train": "0.3", "test": "0.7"}, {"a": "0.5", "b": "0.5"}], ids=str)
def test_what_is_not_finite_is_told_of_every_split(
    tmp_path: Path, build_here: BuildHere, splits: dict[str, str], per_record: int
) -> None:
    dataset = build_here(
        save_spoilt(tmp_path / "in"),
        tmp_path / "out",
        window_length=7,
        shift=2,
        splits=splits,
        num_shards=3,
        windows_per_record=per_record,
    )

    assert dataset.manifest.nonfinite == (
        Nonfinite(3, "gain", 1, 0),
        Nonfinite(3, "x", 3, 14),
    )  # the last step is in no window, and each other one counts once however many windows have it


def test_statistics_are_of_the_training_split_and_count_each_step_once(tmp_path: Path, build_here: BuildHere) -> None:
    inputs = save_spoilt(tmp_path / "in")
    dataset = build_here(
        inputs, tmp_path / "out", window_length=7, shift=2, splits={"test": "0.6", "train": "0.4"}, num_shards=3
    )

    assert dataset.manifest.training_split == "train"
    rows = sorted(set(dataset["train"].provenance()["episode"].tolist()))
    assert len(rows) == 4
    x = np.concatenate([load_array(f"{inputs}/{row}.npz", "x")[:49] for row in rows]).astype(float)
    of_x, of_y = dataset.manifest.statistics
    finite = [column[np.isfinite(column)] for column in x.T]
    assert (of_x.feature, of_y.feature) == ("x", "y")
    assert [part.count for part in of_x.components] == [len(column) for column in finite]
    assert [part.mean for part in of_x.components] == pytest.approx([column.mean() for column in finite], rel=1e-14)
    assert [part.std for part in of_x.components] == pytest.approx([column.std() for column in finite], rel=1e-12)
    assert (of_x.total.nan + of_x.total.infinite) == int((~np.isfinite(x)).sum())
    assert (of_y.total.count, of_y.total.mean) == (4 * 49, pytest.approx(np.mean(rows)))


def test_without_a_split_train_statistics_are_of_the_first(tmp_path: Path, build_here: BuildHere) -> None:
    inputs = save_spoilt(tmp_path / "in")
    dataset = build_here(inputs, tmp_path / "out", window_length=7, splits={"b": "0.2", "a": "0.8"})

    assert dataset.manifest.training_split == "b"
    assert dataset.manifest.statistics[1].total.count == 2 * 49


def test_what_is_not_finite_fails_a_build_that_was_told_to(tmp_path: Path, build_here: BuildHere) -> None:
    inputs = save_spoilt(tmp_path / "in")
    options = {"window_length": 7, "shift": 2, "splits": {"train": "0.5", "test": "0.5"}, "nonfinite": "fail"}

    with pytest.raises(
        BuildError, match=r"/in/3\.npz holds NaN .* in gain, stored as float32, for the whole episode\n"
    ):
        build_here(inputs, tmp_path / "out", **options)
    with pytest.raises(BuildError, match=r"/in/3\.npz holds NaN .* in x, stored as float32, from step 14 on\n"):
        build_here(inputs, tmp_path / "out2", features=("x", "y"), **options)
    assert not (tmp_path / "out/manifest.json").exists()
    dataset = build_here(inputs, tmp_path / "out3", features=("y",), **options)
    assert dataset.manifest.nonfinite == ()


def test_at_most_a_hundred_places_are_told(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    inputs = save_episodes(tmp_path / "in", [np.full(4, np.nan) for _ in range(120)])

    dataset = build_here(inputs, tmp_path / "out", window_length=4, num_shards=7)

    assert dataset.manifest.nonfinite == tuple(Nonfinite(i, "window", 4, 0) for i in range(100))
    assert dataset.manifest.statistics[0].total.nan == 480


def test_what_is_not_finite_in_both_parts_of_an_episode_is_told_once(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    array = np.zeros(40)
    array[[8, 30]] = np.nan
    inputs = save_episodes(tmp_path / "in", [array])

    dataset = build_here(
        inputs, tmp_path / "out", window_length=5, splits={"train": "0.5", "test": "0.5"}, split_by="time"
    )

    assert dataset.manifest.nonfinite == (Nonfinite(0, "window", 2, 8),)
    assert dataset.manifest.statistics[0].total.nan == 1


# Records of several windows


def test_a_record_may_have_room_for_more_windows_than_any_episode(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    arrays = [np.arange(1, steps + 1, dtype="f4") for steps in (20, 9, 4, 6)]
    dataset = build_here(
        save_episodes(tmp_path / "in", arrays), tmp_path / "out", window_length=6, shift=4, windows_per_record=1000
    )

    check(dataset, [{"window": array} for array in arrays])
    (split,) = dataset.manifest.splits
    assert (split.records, split.windows) == (3, 4 + 1 + 1)
    assert dataset.manifest.layout.field("window").feature.shape == (999 * 4 + 6,)


@pytest.mark.parametrize("steps", [200_000, 200_007])
def test_long_windows_that_overlap_much_take_hardly_more_room_than_their_episodes(tmp_path: Path, steps: int) -> None:
    (tmp_path / "in").mkdir()
    for i in range(5):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({steps},), }}".encode()
        with (tmp_path / f"in/{i}.npy").open("wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
            file.truncate(128 + 4 * steps)
    options = {"inputs": (str(tmp_path / "in"),), "output": str(tmp_path / "out"), "window_length": 1024, "shift": 8}

    automatic, one = plan(BuildOptions(**options, windows_per_record="auto")), plan(BuildOptions(**options))

    assert automatic.source.bytes == 5 * 4 * steps
    assert automatic.manifest.bytes <= 1.15 * automatic.source.bytes
    assert one.manifest.bytes > 100 * one.source.bytes
    assert automatic.manifest.windows == one.manifest.windows
    recommended = describe_plan(one)["recommended"]
    assert recommended == {
        "windows_per_record": automatic.window.per_record,
        "bytes": automatic.manifest.bytes,
    }


def test_records_chosen_are_not_so_large_that_a_shard_is_no_sample(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros((10_000, 16), "f4")])
    options = {"inputs": (inputs,), "output": str(tmp_path / "out"), "window_length": 64, "shift": 8}

    planned = plan(BuildOptions(**options, windows_per_record="auto", shard_size=2**20))

    assert planned.window.per_record > 1
    one = plan(BuildOptions(**options)).layout.record_bytes  # a fourth of a 64th of a shard
    assert planned.layout.record_bytes <= 8 * one + 200
    assert planned.splits[0].shard_sums(planned.splits[0].count).min() >= 16


# What is staged


def test_a_task_has_all_that_its_shard_needs(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_episodes(tmp_path / "in", {"a": np.zeros((40, 2), "f4"), "b": np.zeros((9, 2), ">f4")})
    (tmp_path / "labels.csv").write_text("path,task,x\na.npy,push,1.5\nb.npy,pick,2\n")
    planned = plan(
        BuildOptions(
            inputs=(inputs,),
            output=str(tmp_path / "out"),
            window_length=4,
            labels=str(tmp_path / "labels.csv"),
            splits={"train": "0.5", "test": "0.5"},
            split_by="time",
            purge=1,
            windows_per_record=3,
        )
    )

    train, test = planned.tasks()

    states = [file_state(f"{inputs}/{name}.npy") for name in "ab"]
    assert [state.size for state in states] == [128 + 40 * 8, 128 + 9 * 8]
    assert (train.file, train.key, train.measured) == ("out-train.tfrecord-00000-of-00001", (0, 2, 0, 0), True)
    assert (test.file, test.key, test.measured) == ("out-test.tfrecord-00000-of-00001", (0, 2, 1, 0), False)
    assert train.episodes == {
        0: SourceEpisode("a.npy", states[0], 40, 0, (128,), 0, 20, (1, 1.5)),
        1: SourceEpisode("b.npy", states[1], 9, 1, (128,), 0, 4, (0, 2.0)),
    }
    assert test.episodes == {
        0: SourceEpisode("a.npy", states[0], 40, 0, (128,), 21, 19, (1, 1.5)),
        1: SourceEpisode("b.npy", states[1], 9, 1, (128,), 5, 4, (0, 2.0)),
    }
    assert sorted(train.spans) == [Span(0, 0, 1), Span(0, 1, 1), Span(1, 0, 1)]
    recipe = planned.recipe
    assert (recipe.labels, recipe.picked, recipe.fail_nonfinite) == (("task", "x"), None, False)
    assert recipe.shard_bytes == 3 * recipe.layout.record_bytes


def test_the_plan_of_a_file_grows_with_its_shards_and_not_with_their_square(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/huge.npy").open("wb") as file:
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1073741824,)}"
        file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
        file.truncate(128 + 2**30)
    staged = []
    for shards in (50, 500):
        options = {"inputs": (str(tmp_path / "in"),), "output": str(tmp_path / "out"), "window_length": 1000}
        lines = [len(task.to_json()) for task in plan(BuildOptions(**options, num_shards=shards)).tasks()]
        assert len(lines) == shards
        staged.append(sum(lines))

    assert staged[1] < 11 * staged[0]


def test_planning_looks_at_headers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    for i in range(40):
        np.savez(tmp_path / f"in/{i}.npz", x=np.zeros(100_000), y=np.zeros((100_000, 2)))
        np.savez_compressed(tmp_path / f"in/c{i}.npz", x=np.zeros(100_000), y=np.zeros((100_000, 2)))
    read: list[int] = []
    opened = episodes.open_file

    class Counted:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> "Counted":
            self._file.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._file.__exit__(*error)

        def read(self, size: int = -1) -> bytes:
            data: bytes = self._file.read(size)
            read.append(len(data))
            return data

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    monkeypatch.setattr(episodes, "open_file", lambda path, ahead: Counted(opened(path, ahead)))

    planned = plan(BuildOptions(inputs=(str(tmp_path / "in"),), output=str(tmp_path / "out"), window_length=100))

    assert planned.manifest.windows == 80 * 1000
    assert 0 < sum(read) < 80 * 20_000  # of 2.4 MB a file


def header_only(folder: Path, steps: int) -> str:
    """A sparse file of float32 zeros."""
    folder.mkdir()
    with (folder / "long.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (steps,)})
        file.truncate(file.tell() + 4 * steps)
    return str(folder)


def test_an_episode_longer_than_any_record_can_share_records(tmp_path: Path) -> None:
    inputs = header_only(tmp_path / "in", 100_000_000)  # as one record it would have no layout
    options = {"inputs": (inputs,), "output": str(tmp_path / "out"), "window_length": 1024, "shift": 8}

    automatic = plan(BuildOptions(**options, windows_per_record="auto"))

    assert automatic.window.per_record > 1000
    assert automatic.manifest.bytes < 1.15 * automatic.source.bytes
    recommended = describe_plan(plan(BuildOptions(**options)))["recommended"]
    assert recommended["windows_per_record"] == automatic.window.per_record


def test_large_windows_share_records_too(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros((250, 64, 64, 3), np.uint8)])
    options = {"inputs": (inputs,), "output": str(tmp_path / "out"), "window_length": 200, "shift": 1}

    alone, automatic = (plan(BuildOptions(**options, windows_per_record=how)).manifest.bytes for how in (1, "auto"))

    assert automatic < alone / 20
