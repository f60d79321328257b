"""Raw steps of windows, each stored once: where they go, what is read there, and what part each replica has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes
from reader.raw_steps import Places, RawSteps, part_of, place, read_raw_steps
from shards import Dataset, Feature, ShardError
from shards.features import DTYPES
from shards.gather import columns_of
from shards.windows import TAILS, WindowSpec


def all_windows(window: WindowSpec, steps: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(episode, first step) of every window."""
    pairs = [(e, int(window.start(i, n))) for e, n in enumerate(steps) for i in range(int(window.count(n)))]
    episode, start = np.array(pairs, np.int64).reshape(-1, 2).T
    return episode, start


@st.composite
def chosen_windows(draw: st.DrawFn) -> tuple[WindowSpec, np.ndarray, np.ndarray]:
    """Windows of a few episodes, some or all of them, in any order."""
    length, shift, stride = (draw(st.integers(1, n)) for n in (12, 15, 4))
    window = WindowSpec(length, shift, stride, draw(st.sampled_from(TAILS)))
    episode, start = all_windows(window, draw(st.lists(st.integers(1, 60), min_size=1, max_size=4)))
    order = np.array(draw(st.permutations(range(len(episode)))), np.int64)
    order = order[: draw(st.integers(0, len(order)))]
    return window, episode[order], start[order]


@given(chosen_windows())
@settings(max_examples=80, deadline=None)
def test_every_step_of_every_window_is_in_its_row_and_stored_once(
    chosen: tuple[WindowSpec, np.ndarray, np.ndarray],
) -> None:
    window, episode, start = chosen
    places = place(episode, start, window)
    held: dict[int, tuple[int, int]] = {}
    for e, s, first in zip(episode.tolist(), start.tolist(), places.first.tolist(), strict=True):
        for k in range(window.length):
            assert held.setdefault(first + k, (e, s + k * window.stride)) == (e, s + k * window.stride)
    assert sorted(held) == list(range(places.steps))
    different = len(set(held.values()))
    assert different <= places.steps <= (different if window.tail != "align" else 1.125 * different)


@given(chosen_windows())
@settings(max_examples=50, deadline=None)
def test_the_fresh_steps_of_all_windows_are_all_rows_once(chosen: tuple[WindowSpec, np.ndarray, np.ndarray]) -> None:
    window, episode, start = chosen
    places = place(episode, start, window)
    ends = (places.first + window.length).tolist()
    rows = [row for end, n in zip(ends, places.fresh.tolist(), strict=True) for row in range(end - n, end)]
    assert sorted(rows) == list(range(places.steps))
    assert window.length % places.block == 0
    assert not (places.first % places.block).any()
    assert not (places.fresh % places.block).any()


@pytest.mark.parametrize(
    ("window", "steps", "first", "fresh", "rows", "block"),
    [
        (WindowSpec(4, shift=2), [8, 4], [0, 2, 4, 8], [4, 2, 2, 4], 12, 2),
        (WindowSpec(4, shift=4), [8, 4], [0, 4, 8], [4, 4, 4], 12, 4),
        (WindowSpec(4, shift=10), [24], [0, 4, 8], [4, 4, 4], 12, 4),  # what lies between windows is not stored
        (WindowSpec(2, shift=1, stride=2), [6], [0, 3, 1, 4], [2, 2, 1, 1], 6, 1),  # steps 0 2 4 1 3 5
        (WindowSpec(2, shift=3, stride=3), [9], [0, 1], [2, 1], 3, 1),  # steps 0 3 6
        (WindowSpec(4, shift=2, tail="pad"), [5], [0, 2], [4, 2], 6, 2),
        (WindowSpec(4, shift=2, tail="align"), [7], [0, 2, 3], [4, 2, 1], 7, 1),  # askew: too much would be twice
        (WindowSpec(4, shift=2, tail="align"), [65], [*range(0, 62, 2), 64], [4, *[2] * 30, 4], 68, 2),
    ],
)
def test_places_of_the_windows_of_whole_episodes(
    window: WindowSpec, steps: list[int], first: list[int], fresh: list[int], rows: int, block: int
) -> None:
    places = place(*all_windows(window, steps), window)
    assert places.first.tolist() == first
    assert (places.fresh.tolist(), places.steps, places.block) == (fresh, rows, block)


def test_the_size_is_known_before_anything_is_read() -> None:
    places = Places(np.zeros(10, np.int64), np.zeros(10, np.int64), steps=100, block=1)
    columns = [Feature("a", "float32", (8, 3)), Feature("b", "uint8", (8,)), Feature("c", "float64", ())]
    assert places.nbytes(columns) == 100 * 12 + 100 + 10 * 8 + 10 * 8
    assert place(*all_windows(WindowSpec(4, 1), [3]), WindowSpec(4, 1)).nbytes(columns) == 0


@given(st.integers(1, 50), st.integers(1, 8), st.booleans())
def test_parts_are_equal_neighbours(count: int, parts: int, repeat: bool) -> None:
    order = np.random.default_rng(count).permutation(count)
    each = [part_of(order, part, parts, repeat) for part in range(parts)]
    assert {len(part) for part in each} == {-(-count // parts) if repeat else count // parts}
    where = np.argsort(order)
    for part in each:
        assert (np.diff(part) > 0).all()
        assert (np.diff(np.sort(where[part])) == 1).all()
    together = np.concatenate(each)
    if repeat:
        assert set(together.tolist()) == set(range(count))
    else:
        assert len(set(together.tolist())) == len(together)


SHAPES: dict[str, tuple[int, ...]] = {"uint8": (3,), "float32": (2, 2), "int16": (2,)}
VALUES: dict[str, Any] = {"mass": np.float32(3), "code": np.int64(-(2**62)), "good": np.bool_(True), "id": np.uint8(7)}


def episode(number: int, steps: int) -> dict[str, np.ndarray]:
    """An array along time of each dtype, of random bits, and values of the whole episode."""
    random = np.random.default_rng(number)
    arrays = {}
    for name, dtype in DTYPES.items():
        shape = (steps, *SHAPES.get(name, ()))
        bits = random.bytes(int(np.prod(shape)) * dtype.itemsize)
        arrays[f"t_{name}"] = (
            random.integers(0, 2, shape).astype(bool) if name == "bool" else np.frombuffer(bits, dtype).reshape(shape)
        )
    values = {name: type(value)(value if value.dtype == bool else value + number) for name, value in VALUES.items()}
    return arrays | values


def save(folder: Path, dtypes: set[str]) -> str:
    """Episodes of several lengths; bfloat16, which NumPy's files cannot hold, is left out."""
    folder.mkdir()
    for number, steps in enumerate((31, 4, 3, 17, 58)):
        arrays = episode(number, steps)
        np.savez(
            folder / f"e{number}.npz",
            **{name: array for name, array in arrays.items() if not array.shape or name[2:] in dtypes},
        )
    return str(folder)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("episodes")
    return {
        "every": save(root / "every", set(DTYPES) - {"bfloat16"}),
        "some": save(root / "some", {"float32", "uint8", "int64"}),
    }


def read(dataset: Dataset, numbers: np.ndarray | None = None, names: list[str] | None = None) -> RawSteps:
    """The raw steps of windows of the only split, all if None, checked against the windows themselves."""
    ((_, windows),) = dataset.items()
    manifest = dataset.manifest
    numbers = np.arange(len(windows)) if numbers is None else numbers
    columns = columns_of(manifest, names, provenance=True)
    where = windows.provenance(numbers)
    places = place(where["episode"], where["start"], manifest.window)
    raw = read_raw_steps(windows, manifest, columns, numbers, places)
    assert raw.nbytes == places.nbytes(columns)
    expected = windows[numbers] | where
    assert {*raw.steps, *raw.values} == {column.name for column in columns}
    rows = raw.first[:, np.newaxis] + np.arange(manifest.window.length)
    for column in columns:
        found = raw.steps[column.name][rows] if column.shape else raw.values[column.name]
        assert (found.dtype, found.shape) == (column.numpy_dtype, (len(numbers), *column.shape))
        assert found.tobytes() == expected[column.name].tobytes(), column.name
    return raw


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("shift", "stride"), [(1, 1), (2, 1), (7, 1), (3, 2)])
@pytest.mark.parametrize("per_record", [1, 3])
def test_steps_are_those_of_the_windows(
    inputs: dict[str, str],
    tmp_path: Path,
    build_here: BuildHere,
    tail: str,
    shift: int,
    stride: int,
    per_record: int,
) -> None:
    options = {"shift": shift, "stride": stride, "tail": tail, "windows_per_record": per_record, "num_shards": 3}
    dataset = build_here(inputs["some"], tmp_path / "out", window_length=4, **options)
    raw = read(dataset)
    for column in raw.steps:
        assert raw.steps[column].flags.c_contiguous
    if tail == "drop" and shift == 1:
        used = 31 + 4 + 17 + 58  # of the episodes that have a window
        assert len(raw.steps["t_float32"]) == used
    count = len(raw.first)
    read(dataset, np.arange(1, count, 3))
    read(dataset, np.array([count - 1]), ["t_uint8", "good"])


@pytest.mark.parametrize("per_record", [1, 3])
@pytest.mark.parametrize("shift", [1, 2])
def test_every_bit_of_every_dtype_stays(
    inputs: dict[str, str], tmp_path: Path, build_here: BuildHere, shift: int, per_record: int
) -> None:
    options = {"window_length": 4, "windows_per_record": per_record, "num_shards": 2}
    read(build_here(inputs["every"], tmp_path / "out", shift=shift, **options))
    halves = build_here(inputs["every"], tmp_path / "halves", shift=shift, dtype={"t_float32": "bfloat16"}, **options)
    assert read(halves).steps["t_float32"].dtype == DTYPES["bfloat16"]


@pytest.mark.parametrize("per_record", [1, "auto"])
def test_steps_in_many_windows_are_held_once(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, per_record: Any
) -> None:
    arrays = [np.random.default_rng(i).normal(size=(steps, 32)).astype("f4") for i, steps in enumerate((900, 500))]
    dataset = build_here(
        save_episodes(tmp_path / "in", arrays),
        tmp_path / "out",
        window_length=128,
        shift=1,
        windows_per_record=per_record,
    )
    raw = read(dataset)
    assert raw.steps["window"].nbytes == sum(array.nbytes for array in arrays)
    for part in range(3):
        numbers = part_of(np.lexsort((raw.values["start"], raw.values["episode"])), part, 3)
        assert len(read(dataset, numbers).steps["window"]) <= (len(numbers) + 2 * 127)


def test_a_shard_that_is_not_the_manifests_is_refused(
    inputs: dict[str, str], tmp_path: Path, build_here: BuildHere
) -> None:
    dataset = build_here(inputs["some"], tmp_path / "out", window_length=4, shift=1, windows_per_record=3)
    windows, manifest = dataset["train"], dataset.manifest
    numbers, where = np.arange(len(windows)), windows.provenance()
    places = place(where["episode"], where["start"], manifest.window)
    shard = tmp_path / "out" / windows.split.shards[0].file
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(ShardError, match="has changed since the dataset was opened"):
        read_raw_steps(windows, manifest, columns_of(manifest), numbers, places)
