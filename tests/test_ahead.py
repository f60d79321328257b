"""Pieces read ahead: streamed as mapped, each once and in time, errors that name the shard, and nothing left behind."""

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import reader.stream
from conftest import BuildHere, SaveEpisodes
from reader import load
from reader.ahead import Ahead, Read, mapping, streaming
from shards import Dataset, ShardError, open_dataset
from shards.pieces import Piece, cut_shards, map_piece, whole_shards

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


def cut(folder: Path) -> tuple[Dataset, int, list[Piece]]:
    dataset = open_dataset(folder)
    pieces = cut_shards(dataset.folder, dataset["train"].split.shards, dataset.manifest)
    return dataset, dataset.manifest.layout.record_bytes, pieces


def most(pieces: Sequence[Piece]) -> int:
    return max(piece.records for piece in pieces)


def test_a_streamed_piece_is_the_mapped_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shards.pieces.PIECE_BYTES", 1000)
    monkeypatch.setattr("reader.ahead._READ_BYTES", 77)
    _, nbytes, pieces = cut(folder)
    read, kept = streaming(nbytes, most(pieces)), []
    for piece in pieces:
        kept.append(read(piece))
        assert kept[-1].shape == (piece.records, nbytes)
    assert all(array.tobytes() == map_piece(p, nbytes).tobytes() for array, p in zip(kept, pieces, strict=True))


def test_a_piece_longer_than_one_read_is_streamed(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, (40, 10_001), np.uint8)
    values.tofile(tmp_path / "shard")
    piece = Piece(str(tmp_path / "shard"), values.size, 3, 30, 30)
    assert np.array_equal(streaming(10_001, 30)(piece), values[3:33])


def test_memory_of_a_streamed_piece_is_used_again_only_once_it_is_gone(folder: Path) -> None:
    _, nbytes, pieces = cut(folder)
    read = streaming(nbytes, most(pieces))
    first = read(pieces[0])
    kept = first.tobytes()
    others = [read(piece) for piece in pieces[1:]]
    assert first.tobytes() == kept
    places = {array.ctypes.data for array in others}
    del others
    assert read(pieces[0]).ctypes.data in places


@pytest.mark.parametrize("way", ["streamed", "mapped"])
def test_what_cannot_be_read_is_named(copy: Path, way: str) -> None:
    _, nbytes, pieces = cut(copy)
    read = streaming(nbytes, most(pieces)) if way == "streamed" else mapping(nbytes)
    (copy / Path(pieces[3].file).name).unlink()
    with pytest.raises(ShardError, match=r"00003-of-00012 cannot be read: .*[Nn]o such file.*copy the dataset again"):
        read(pieces[3])


def test_a_shard_cut_short_while_it_is_streamed_is_named(copy: Path) -> None:
    dataset, nbytes, _ = cut(copy)
    pieces = whole_shards(dataset.folder, dataset["train"].split.shards)
    os.truncate(pieces[5].file, pieces[5].file_bytes - 1)
    with pytest.raises(ShardError, match=r"00005-of-00012 has changed since the dataset was opened; open it again"):
        streaming(nbytes, most(pieces))(pieces[5])


def test_a_piece_beyond_the_end_of_its_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(100))
    with pytest.raises(ShardError, match=r"shard .*shard (cannot be read|was cut short at 200 bytes)"):
        streaming(10, 5)(Piece(str(tmp_path / "shard"), 100, 20, 5, 5))


def test_a_piece_of_a_url_is_read_through_the_file_systems_of_tensorflow() -> None:
    values = np.random.default_rng(1).integers(0, 256, (40, 10_001), np.uint8)
    with tf.io.gfile.GFile("ram://shards/shard", "wb") as file:
        file.write(values.tobytes())
    piece = Piece("ram://shards/shard", values.size, 3, 30, 30)
    assert np.array_equal(streaming(10_001, 30)(piece), values[3:33])
    cut = Piece("ram://shards/shard", values.size, 30, 11, 11)
    with pytest.raises(ShardError, match="shard ram://shards/shard was cut short at 400040 bytes; copy the dataset"):
        streaming(10_001, 11)(cut)
    with pytest.raises(ShardError, match=r"shard ram://shards/none cannot be read: .*; copy the dataset again"):
        streaming(10_001, 30)(Piece("ram://shards/none", values.size, 3, 30, 30))


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_while_training_names_the_shard(copy: Path, stream: bool) -> None:
    dataset = load(copy, batch_size=10, stream=stream)
    (copy / Path(cut(copy)[2][7].file).name).unlink()
    with pytest.raises(tf.errors.UnknownError, match=r"ShardError: shard .*00007-of-00012 cannot be read") as caught:
        list(dataset)
    assert isinstance(caught.value, tf.errors.OpError)


def test_a_damaged_record_while_training_is_named(copy: Path) -> None:
    dataset, _, pieces = cut(copy)
    if dataset.manifest.window.per_record == 1:
        return
    with open(pieces[7].file, "r+b") as file:
        file.seek(dataset.manifest.layout.field("count").offset)
        file.write(b"\x80" * 4)
    for stream in (True, False):
        with pytest.raises(tf.errors.UnknownError, match=r"ShardError: shard .*00007-of-00012 is damaged"):
            list(load(copy, batch_size=10, stream=stream))


class Reads:
    """Counts the pieces that are read, and says when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces: list[str] = []
        self.fails: Callable[[str], bool] = lambda _: False
        monkeypatch.setattr(reader.stream, "streaming", lambda nbytes, most: self.noting(streaming(nbytes, most)))

    def noting(self, read: Read) -> Read:
        def noted(piece: Piece) -> Any:
            self.pieces.append(piece.file)
            if self.fails(piece.file):
                raise ShardError(f"shard {piece.file} cannot be read today")
            return read(piece)

        return noted


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.mark.parametrize("pool", [1, 4, 64])
@pytest.mark.parametrize("batch_size", [1, 10, 1000])
def test_no_piece_is_read_twice_in_an_epoch(folder: Path, reads: Reads, pool: int, batch_size: int) -> None:
    assert sum(len(b["window"]) for b in load(folder, batch_size=batch_size, pool=pool, stream=True)) == WINDOWS
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
    dataset = load(folder, batch_size=5, pool=3, stream=True, provenance=True)
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
    dataset = load(folder, batch_size=10, stream=True)
    reads.fails = lambda file: "00003-of" in file
    with pytest.raises(tf.errors.UnknownError, match="00003-of-00012 cannot be read today"):
        list(dataset)
    reads.fails = lambda _: False
    assert sum(len(batch["window"]) for batch in dataset) == WINDOWS


def test_pieces_of_the_first_pool_are_read_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, together, lock = [0], [0], threading.Lock()

    def slow(nbytes: int, most: int) -> Read:
        read = streaming(nbytes, most)

        def slowly(piece: Piece) -> Any:
            with lock:
                reading[0] += 1
                together[0] = max(together[0], reading[0])
            time.sleep(0.1)
            with lock:
                reading[0] -= 1
            return read(piece)

        return slowly

    monkeypatch.setattr(reader.stream, "streaming", slow)
    monkeypatch.setattr("reader.order.ShuffledOrder.ahead", lambda *_: np.empty(0, np.int64))
    next(iter(load(folder, batch_size=200, stream=True)))
    assert together[0] == 8


def test_the_last_pieces_asked_for_stay_and_no_others(folder: Path) -> None:
    dataset, nbytes, pieces = cut(folder)
    read: list[int] = []

    def note(piece: Piece) -> Any:
        read.append(pieces.index(piece))
        return map_piece(piece, nbytes)

    ahead = Ahead(dataset.manifest, pieces, note, keep=3)
    for i in (0, 1, 2, 0, 3, 0, 2, 1):  # 3 drives out 1, and 1 drives out 3
        assert ahead(i).piece == pieces[i]
    assert read == [0, 1, 2, 3, 1]
    ahead.expect(np.array([5, 2]))
    assert [ahead(i).piece for i in (2, 5, 1)] == [pieces[2], pieces[5], pieces[1]]
    assert read[5:] == [5]


def test_several_threads_that_ask_for_a_piece_share_one_read(folder: Path) -> None:
    dataset, nbytes, pieces = cut(folder)
    read: list[Piece] = []

    def note(piece: Piece) -> Any:
        read.append(piece)
        time.sleep(0.05)
        return map_piece(piece, nbytes)

    ahead = Ahead(dataset.manifest, pieces, note, keep=3)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(ahead(1))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [pieces[1]]
    assert len({id(records) for records in found}) == 1


def test_a_failing_read_is_the_error_of_whoever_needs_the_piece_alone(folder: Path) -> None:
    dataset, nbytes, pieces = cut(folder)

    def fail(piece: Piece) -> Any:
        if piece == pieces[2]:
            raise ShardError("shard 2 is no good")
        return map_piece(piece, nbytes)

    ahead = Ahead(dataset.manifest, pieces, fail, keep=8)
    ahead.expect(np.arange(4))
    assert ahead(3).piece == pieces[3]
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


@pytest.mark.parametrize("stream", [True, False])
def test_threads_and_files_go_with_the_dataset(folder: Path, stream: bool) -> None:
    assert wait_until(lambda: not threads_of_the_reader())

    def files() -> int:
        return sum(str(folder) in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is(fd))

    def _is(fd: str) -> bool:
        return os.path.lexists(f"/proc/self/fd/{fd}")

    dataset = load(folder, batch_size=10, stream=stream)
    iterator = iter(dataset)
    next(iterator)
    assert threads_of_the_reader()
    assert stream or 0 < files() <= 12
    del dataset, iterator
    assert wait_until(lambda: not threads_of_the_reader() and files() == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_many_epochs_hold_no_more_than_a_few(folder: Path, stream: bool) -> None:
    dataset = load(folder, batch_size=100, stream=stream, pool=4)

    def held() -> tuple[int, int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text().count(str(folder))
        return len(os.listdir("/proc/self/fd")), maps, len(threads_of_the_reader())

    def epochs(count: int) -> None:
        for _ in range(count):
            assert sum(len(batch["window"]) for batch in dataset) == WINDOWS

    epochs(5)
    before = held()
    epochs(40)
    assert all(after <= most + 4 for after, most in zip(held(), before, strict=True))
    assert held()[1] <= (0 if stream else 12)
