"""Pieces read ahead: each once and in time, errors that name the shard, and nothing left behind."""

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import reader.ahead
from conftest import BuildHere, SaveEpisodes
from reader import load
from reader.ahead import Ahead
from shards import ShardError, open_dataset
from shards.pieces import Piece
from shards.shard_file import ShardFile, read_piece

WINDOWS = 3 * 249


@pytest.fixture(scope="module", params=[1, 4], ids=["one_a_record", "four_a_record"])
def folder(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
) -> Path:
    root = tmp_path_factory.mktemp("ahead")
    inputs = save_episodes(root / "in", [np.arange(1000, dtype=np.float32) + 10_000 * i for i in range(3)])
    build_here(inputs, root / "out", window_length=8, shift=4, num_shards=12, windows_per_record=request.param)
    return root / "out"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture(params=["pieces", "windows"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Pieces are read whole, or windows one by one."""
    if request.param == "windows":
        monkeypatch.setattr("reader.stream.LARGE_BYTES", 0)
    return str(request.param)


def shard(folder: Path, number: int) -> Path:
    return folder / f"out-train.tfrecord-{number:05d}-of-00012"


@pytest.mark.usefixtures("way")
def test_an_error_while_training_names_the_shard(copy: Path) -> None:
    dataset = load(copy, batch_size=10)
    shard(copy, 7).unlink()
    message = r"shard .*00007-of-00012 cannot be read: No such file or directory; copy the dataset again$"
    with pytest.raises(ShardError, match=message):
        list(dataset)
    with pytest.raises(tf.errors.UnknownError, match=r"ShardError: shard .*00007-of-00012 cannot be read"):
        list(dataset.map(lambda batch: batch))


@pytest.mark.usefixtures("way")
def test_a_damaged_record_while_training_is_named(copy: Path) -> None:
    dataset = open_dataset(copy)
    if dataset.manifest.window.per_record == 1:
        return
    with open(shard(copy, 7), "r+b") as file:
        file.seek(dataset.manifest.layout.field("count").offset)
        file.write(b"\x80" * 4)
    with pytest.raises(ShardError, match=r"shard .*00007-of-00012 is damaged: it does not hold \d+ windows as the"):
        list(load(copy, batch_size=10))


class Reads:
    """Counts the pieces that are read, and says when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces: list[str] = []
        self.fails: Callable[[str], bool] = lambda _: False
        monkeypatch.setattr(reader.ahead, "read_piece", self.read)

    def read(self, piece: Piece, into: np.ndarray) -> None:
        self.pieces.append(piece.file)
        if self.fails(piece.file):
            raise ShardError(f"shard {piece.file} cannot be read today")
        read_piece(piece, into)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.mark.parametrize("pool", [1, 4, 64])
@pytest.mark.parametrize("batch_size", [1, 10, 1000])
def test_no_piece_is_read_twice_in_an_epoch(folder: Path, reads: Reads, pool: int, batch_size: int) -> None:
    assert sum(len(b["window"]) for b in load(folder, batch_size=batch_size, pool=pool)) == WINDOWS
    time.sleep(0.05)
    counts = Counter(reads.pieces)
    assert len(counts) == 12
    # What is read twice belongs to the next epoch: no more than its first pool.
    assert sum(counts.values()) <= 12 + min(pool, 12)
    assert max(counts.values()) <= 2


def test_the_next_pool_is_read_before_it_is_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader.chunks.CHUNK_STEPS", 1)
    monkeypatch.setattr("reader.chunks.PARALLEL_CHUNKS", 1)
    reads = Reads(monkeypatch)
    dataset = load(folder, batch_size=5, pool=3, provenance=True)
    in_time = []
    called = Ahead.__call__

    def call(self: Ahead, i: int) -> Any:
        in_time.append(i in {int(file[-14:-9]) for file in reads.pieces})
        return called(self, i)

    monkeypatch.setattr(Ahead, "__call__", call)
    for _ in dataset:
        time.sleep(0.001)  # a training step
    assert in_time.count(False) <= 3  # those of the first pool


def test_a_failed_read_is_tried_again_in_the_next_epoch(folder: Path, reads: Reads) -> None:
    dataset = load(folder, batch_size=10)
    reads.fails = lambda file: "00003-of" in file
    with pytest.raises(ShardError, match="00003-of-00012 cannot be read today"):
        list(dataset)
    reads.fails = lambda _: False
    assert sum(len(batch["window"]) for batch in dataset) == WINDOWS


def test_pieces_of_the_first_pool_are_read_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, together, lock = [0], [0], threading.Lock()

    def slowly(piece: Piece, into: np.ndarray) -> None:
        with lock:
            reading[0] += 1
            together[0] = max(together[0], reading[0])
        time.sleep(0.1)
        with lock:
            reading[0] -= 1
        read_piece(piece, into)

    monkeypatch.setattr(reader.ahead, "read_piece", slowly)
    monkeypatch.setattr("reader.order.ShuffledOrder.ahead", lambda *_: np.empty(0, np.int64))
    next(iter(load(folder, batch_size=200)))
    assert together[0] == 8


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be told")
def test_where_windows_are_read_one_by_one_the_system_is_told_of_each_piece_once_an_epoch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader.stream.LARGE_BYTES", 0)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(ShardFile, "advise", lambda _, at, nbytes: told.append((at, nbytes)))
    assert sum(len(batch["window"]) for batch in load(folder, batch_size=10, pool=3)) == WINDOWS
    assert wait_until(lambda: len(told) >= 12)
    assert len(told) <= 12 + 3  # and the first pool of the next epoch
    sizes = {file.stat().st_size for file in folder.glob("*.tfrecord-*")}
    assert {at for at, _ in told} == {0}
    assert {nbytes for _, nbytes in told} == sizes
    told.clear()
    list(load(folder, batch_size=10, shuffle=False))
    time.sleep(0.05)
    assert told == []


def test_the_last_that_were_asked_for_stay_and_no_others() -> None:
    read: list[int] = []
    ahead = Ahead(lambda i: read.append(i) or 10 * i, keep=3)
    for i in (0, 1, 2, 0, 3, 0, 2, 1):  # 3 drives out 1, and 1 drives out 3
        assert ahead(i) == 10 * i
    assert read == [0, 1, 2, 3, 1]
    ahead.expect(np.array([5, 2]))
    assert [ahead(i) for i in (2, 5, 1)] == [20, 50, 10]
    assert read[5:] == [5]


def test_several_threads_that_ask_for_the_same_share_one_read() -> None:
    read: list[int] = []

    def note(i: int) -> object:
        read.append(i)
        time.sleep(0.05)
        return object()

    ahead = Ahead(note, keep=3)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(ahead(1))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [1]
    assert len(found) == 6
    assert len(set(map(id, found))) == 1


def test_a_failing_read_is_the_error_of_whoever_needs_it_alone() -> None:
    def fail(i: int) -> int:
        if i == 2:
            raise ShardError("shard 2 is no good")
        return i

    ahead = Ahead(fail, keep=8)
    ahead.expect(np.arange(4))
    assert ahead(3) == 3
    with pytest.raises(ShardError, match="shard 2 is no good"):
        ahead(2)


def threads_of_the_reader() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def wait_until(true: Callable[[], bool]) -> bool:
    for _ in range(200):
        gc.collect()
        if true():
            return True
        time.sleep(0.05)
    return False


def open_files(folder: Path) -> int:
    links = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum(str(folder) in link for link in links)


def test_threads_and_files_go_with_the_dataset(folder: Path, way: str) -> None:
    assert wait_until(lambda: not threads_of_the_reader())
    dataset = load(folder, batch_size=10)
    iterator = iter(dataset)
    next(iterator)
    assert threads_of_the_reader()
    assert way == "pieces" or 0 < open_files(folder) <= 12 + 8  # and those the system is being told of
    del dataset, iterator
    assert wait_until(lambda: not threads_of_the_reader() and open_files(folder) == 0)


@pytest.mark.usefixtures("way")
def test_many_epochs_hold_no_more_than_a_few(folder: Path) -> None:
    dataset = load(folder, batch_size=100, pool=4)

    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(threads_of_the_reader())

    def epochs(count: int) -> None:
        for _ in range(count):
            assert sum(len(batch["window"]) for batch in dataset) == WINDOWS

    epochs(5)
    before = held()
    epochs(40)
    assert all(after <= most + 4 for after, most in zip(held(), before, strict=True))
    assert str(folder) not in Path("/proc/self/maps").read_text()
