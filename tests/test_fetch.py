"""Windows read one by one: those of brute force, whatever is chosen, and no more of a shard than lies near them."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shards.fetch
from conftest import BuildHere, SaveEpisodes
from shards import Windows
from shards.features import Feature
from shards.fetch import runs
from shards.shard_file import ShardFile


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An episode with a small, a medium and a large feature: windows of 10 steps have 10, 4,000 and 20,000 bytes."""
    folder = tmp_path_factory.mktemp("fetch") / "in"
    folder.mkdir()
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"a_small": (), "b_large": (2000,), "c_medium": (400,), "d_small": (2,)}
    arrays = {name: random.integers(0, 256, (400, *shape), np.uint8) for name, shape in shapes.items()}
    np.savez(folder / "e.npz", **arrays, gain=np.float32(3))
    return str(folder)


@pytest.fixture(scope="module", params=[(1, 1), (5, 1), (5, 2)], ids=["alone", "shared", "shared_stride"])
def windows(
    request: pytest.FixtureRequest, archive: str, tmp_path_factory: pytest.TempPathFactory, build_here: BuildHere
) -> Windows:
    per_record, stride = request.param
    how = {"window_length": 10, "shift": 3, "stride": stride, "windows_per_record": per_record, "num_shards": 3}
    return build_here(archive, tmp_path_factory.mktemp("built") / "out", **how)["train"]


def expected(archive: str, windows: Windows, numbers: np.ndarray) -> dict[str, list[bytes]]:
    arrays, where = np.load(f"{archive}/e.npz"), windows.provenance(numbers)
    stride = windows._manifest.window.stride
    held = [range(start, start + 9 * stride + 1, stride) for start in where["start"].tolist()]
    return {
        name: [(arrays[name][list(steps)] if arrays[name].shape else arrays[name]).tobytes() for steps in held]
        for name in arrays.files
    }


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_windows_are_those_of_brute_force(archive: str, windows: Windows, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=40))
    sizes = {
        "_BLOCK_BYTES": st.sampled_from([1, 5000, 2**20]),
        "_GAP_BYTES": st.sampled_from([0, 100, 2**13, 2**20]),
        "_SECTION": st.sampled_from([1, 7, 2**18]),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(shards.fetch, name, data.draw(size))
        batch = windows[chosen]
    assert {name: [value.tobytes() for value in values] for name, values in batch.items()} == expected(
        archive, windows, np.array(chosen)
    )


class Reads:
    """The (file's end, range) of what is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[int, int]] = []
        read = ShardFile.read

        def note(file: ShardFile, memory: memoryview, ranges: Any) -> None:
            noted = list(ranges)
            self.ranges += [(at, nbytes) for _, at, nbytes in noted]
            read(file, memory, noted)

        monkeypatch.setattr(ShardFile, "read", note)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.ranges)


def column(windows: Windows, name: str) -> Feature:
    return next(feature for feature in windows._manifest.features if feature.name == name)


def fetched(windows: Windows, names: list[str], numbers: list[int]) -> None:
    columns = tuple(column(windows, name) for name in names)
    outs = [np.empty((len(numbers), *c.shape), c.numpy_dtype) for c in columns]
    windows.fetch(np.array(numbers), columns, outs)


@pytest.mark.parametrize("windows", [(1, 1)], indirect=True)
def test_no_more_is_read_than_lies_close_by(archive: str, windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, nbytes = Reads(monkeypatch), windows._manifest.layout.record_bytes
    fetched(windows, ["b_large"], [7])
    assert [n for _, n in reads.ranges] == [20_000]
    reads.ranges.clear()
    fetched(windows, ["c_medium"], [2, 9])
    assert [n for _, n in reads.ranges] == [4000, 4000]
    reads.ranges.clear()
    fetched(windows, ["d_small", "c_medium"], [4])  # neighbours in a record
    assert len(reads.ranges) == 1
    assert 4020 <= reads.nbytes <= 4100
    reads.ranges.clear()
    fetched(windows, ["d_small", "a_small"], [4])  # with the large one between
    assert sorted(n for _, n in reads.ranges) == [10, 20]
    reads.ranges.clear()
    monkeypatch.setattr(shards.fetch, "_GAP_BYTES", nbytes)
    monkeypatch.setattr(shards.fetch, "_BLOCK_BYTES", 2**24)
    Windows(windows.folder, windows._manifest, windows.split.name).provenance()  # all of it, in one read a shard
    assert len(reads.ranges) == 3
    assert sum(shard.state.size for shard in windows.shards) - 3 * nbytes < reads.nbytes


@pytest.mark.parametrize("windows", [(5, 1), (5, 2)], indirect=True)
def test_what_overlaps_is_read_once(archive: str, windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    windows[0]
    windows[-1]
    windows[len(windows) // 2]
    reads = Reads(monkeypatch)
    fetched(windows, ["c_medium"], list(range(len(windows))))
    assert reads.nbytes <= sum(shard.state.size for shard in windows.shards)


def test_threads_share_windows_whose_shards_come_and_go(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards.fetch, "_MOST_FILES", 2)
    inputs = save_episodes(tmp_path / "in", [np.arange(2000)])
    windows = build_here(inputs, tmp_path / "out", window_length=4, shift=1, windows_per_record=3, num_shards=9)[
        "train"
    ]
    starts = windows.provenance()["start"]
    wrong: list[int] = []

    def read(seed: int) -> None:
        for numbers in np.random.default_rng(seed).integers(0, len(windows), (40, 50)):
            if windows[numbers]["window"].tolist() != [[s, s + 1, s + 2, s + 3] for s in starts[numbers].tolist()]:
                wrong.append(seed)  # noqa: PERF401

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len([fd for fd in os.listdir("/proc/self/fd") if _is_below(fd, tmp_path)]) <= 2


def _is_below(fd: str, folder: Path) -> bool:
    link = f"/proc/self/fd/{fd}"
    return os.path.islink(link) and os.readlink(link).startswith(str(folder))


@given(st.lists(st.integers(1, 20), max_size=30), st.integers(1, 40))
def test_runs_are_all_counts_once_and_none_is_too_large(counts: list[int], most: int) -> None:
    found = list(runs(np.array(counts, np.int64), most))
    assert [i for begin, end in found for i in range(begin, end)] == list(range(len(counts)))
    assert all(end - begin == 1 or sum(counts[begin:end]) <= most for begin, end in found)
