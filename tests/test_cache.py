"""Copies of shards on a local disk: made once, by however many processes, checked, and within bounds."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import fsspec
import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from reader import load
from shards import Dataset, OptionError, ShardError, open_dataset
from shards.cache import _present, cache_shards
from shards.pieces import Piece

ROOT = Path(__file__).parent.parent
Cache = Callable[..., list[Piece]]


@pytest.fixture(scope="module")
def datasets(
    tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere
) -> list[Dataset]:
    """Two datasets of four shards each, of about 300 kB."""
    folder = tmp_path_factory.mktemp("cache")
    arrays = [np.random.default_rng(i).standard_normal((2000, 8)).astype(np.float32) for i in range(6)]
    inputs = save_episodes(folder / "in", arrays)
    options = {"window_length": 16, "shift": 5, "num_shards": 4}
    return [build_here(inputs, folder / f"out{seed}", seed=seed, **options) for seed in (0, 1)]


def cache(dataset: Dataset, folder: Path, most: int | None = None) -> list[Piece]:
    windows = dataset["train"]
    return cache_shards(dataset.manifest.name, windows.shards, windows.split.shards, folder, most)


def copied(pieces: list[Piece], folder: Path) -> list[bool]:
    return [piece.file.startswith(str(folder)) for piece in pieces]


def present(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*/*.tfrecord*"))


def test_copies_have_the_shards_bytes_and_are_made_once(datasets: list[Dataset], tmp_path: Path) -> None:
    dataset = datasets[0]
    pieces = cache(dataset, tmp_path / "a" / "b")
    assert copied(pieces, tmp_path) == [True] * 4
    for piece, shard in zip(pieces, dataset.manifest.splits[0].shards, strict=True):
        assert Path(piece.file).read_bytes() == (Path(dataset.folder) / shard.file).read_bytes()
    assert [piece.state for piece in cache(dataset, tmp_path / "a" / "b")] == [piece.state for piece in pieces]
    windows = dataset["train"]
    there = windows.reading(pieces)
    assert there[:]["window"].tobytes() == windows[:]["window"].tobytes()


def test_the_first_shards_are_copied_as_far_as_there_is_room(datasets: list[Dataset], tmp_path: Path) -> None:
    sizes = [shard.bytes for shard in datasets[0].manifest.splits[0].shards]
    for most, count in ((sum(sizes), 4), (sum(sizes) - 1, 3), (sum(sizes[:2]), 2), (sizes[0] - 1, 0), (1, 0)):
        assert copied(cache(datasets[0], tmp_path, most), tmp_path) == [True] * count + [False] * (4 - count)
        assert len(present(tmp_path)) == count  # those of before are deleted: nobody has them


def test_folders_that_nobody_reads_from_make_room_the_oldest_first(datasets: list[Dataset], tmp_path: Path) -> None:
    size = datasets[0].manifest.bytes
    first = cache(datasets[0], tmp_path, 2 * size)
    second = cache(datasets[1], tmp_path, size + 1)
    assert copied(second, tmp_path) == [False] * 4  # the first is in use
    del first
    assert copied(cache(datasets[1], tmp_path, size + 1), tmp_path) == [True] * 4
    assert {name.partition("-")[0] for name in present(tmp_path)} == {"out1"}
    assert copied(cache(datasets[0], tmp_path, 2 * size), tmp_path) == [True] * 4
    lock = next(tmp_path.glob("out0-*.lock"))
    os.utime(lock, (0, 0))
    assert len(present(tmp_path)) == 8
    third = cache(datasets[1], tmp_path, 2 * size)
    assert len(third) == 4
    assert len(present(tmp_path)) == 8


def test_what_else_is_in_the_folder_stays_there(datasets: list[Dataset], tmp_path: Path) -> None:
    (tmp_path / "poetry.lock").write_text("of another program")
    for name in ("poetry", "out-0123"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_bytes(b"x" * 1000)

    assert copied(cache(datasets[0], tmp_path, datasets[0].manifest.bytes), tmp_path) == [True] * 4
    assert copied(cache(datasets[1], tmp_path, datasets[0].manifest.bytes - 1), tmp_path) == [True] * 3 + [False]
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} >= {"poetry.lock", "code.py"}
    assert all((tmp_path / name / "code.py").exists() for name in ("poetry", "out-0123"))


def test_a_hold_of_copies_ends_with_the_stream_that_reads_them(datasets: list[Dataset], tmp_path: Path) -> None:
    stream = load(datasets[0].folder, batch_size=64, seed=2, cache_dir=tmp_path)
    plain = load(datasets[0].folder, batch_size=64, seed=2)
    for here, there in zip(stream, plain, strict=True):
        np.testing.assert_array_equal(here["window"], there["window"])
    assert copied(cache(datasets[1], tmp_path, datasets[0].manifest.bytes), tmp_path) == [False] * 4


def test_part_of_a_split_in_the_cache_gives_the_same_stream(datasets: list[Dataset], tmp_path: Path) -> None:
    most = datasets[0].manifest.bytes // 2
    options = {"batch_size": 50, "seed": 5, "cache_dir": tmp_path, "cache_bytes": most}
    with pytest.warns(
        UserWarning, match=r"there is room in \S+ for 2 of the 4 shards; the others are read from \S+ every"
    ):
        stream = load(datasets[0].folder, **options)
    half = [batch["window"].numpy().tobytes() for batch in stream]
    assert half == [batch["window"].numpy().tobytes() for batch in load(datasets[0].folder, batch_size=50, seed=5)]
    assert 0 < sum(file.stat().st_size for file in tmp_path.glob("*/*.tfrecord*")) <= most


def test_a_shard_that_is_damaged_where_it_comes_from_is_no_copy(datasets: list[Dataset], tmp_path: Path) -> None:
    shard = datasets[0].manifest.splits[0].shards[2]
    file = Path(datasets[0].folder, shard.file)
    whole, before = file.read_bytes(), file.stat()
    try:
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(ShardError, match=r"tfrecord-00002-of-00004 is damaged: its SHA-256 is not the manifest's"):
            cache(datasets[0], tmp_path)
        assert shard.file not in present(tmp_path)
        assert not list(tmp_path.glob("*/*.part"))
    finally:
        file.write_bytes(whole)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert copied(cache(datasets[0], tmp_path), tmp_path) == [True] * 4


def test_a_copy_of_another_size_is_made_again(datasets: list[Dataset], tmp_path: Path) -> None:
    (piece, *_) = cache(datasets[0], tmp_path)
    file = Path(piece.file)
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    cache(datasets[0], tmp_path)
    assert file.read_bytes() == whole


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_a_mistake(datasets: list[Dataset], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OptionError, match="cannot be written to: Permission denied; give another folder"):
        cache(datasets[0], tmp_path / "new")


def test_a_file_in_place_of_the_folder_is_a_mistake(datasets: list[Dataset], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"cache_dir .*file cannot be written to: .*; give another folder"):
        load(datasets[0].folder, batch_size=8, cache_dir=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cache_dir": ""}, "cache_dir must name a local folder, not ''"),
        ({"cache_dir": 7}, "cache_dir must name a local folder, not 7"),
        ({"cache_dir": "gs://bucket/cache"}, "cache_dir must name a local folder, not 'gs://bucket/cache'"),
        ({"cache_bytes": 100}, "cache_bytes is for cache_dir"),
        ({"cache_dir": "c", "cache_bytes": 0}, "cache_bytes must be a whole number of 1 or more, not 0"),
    ],
)
def test_what_makes_no_cache_is_a_mistake(datasets: list[Dataset], options: dict[str, object], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        load(datasets[0].folder, batch_size=8, **options)


def test_copies_are_not_deleted_where_that_is_of_no_use(datasets: list[Dataset], tmp_path: Path) -> None:
    size = datasets[0].manifest.bytes
    cache(datasets[0], tmp_path, size)

    assert copied(cache(datasets[1], tmp_path, 1000), tmp_path) == [False] * 4
    assert len(present(tmp_path)) == 4
    assert copied(cache(datasets[1], tmp_path, 2 * size - 1), tmp_path) == [True] * 4
    assert len(present(tmp_path)) == 4  # now it was of use


def test_a_damaged_copy_is_made_anew_where_it_is_verified(datasets: list[Dataset], tmp_path: Path) -> None:
    pieces = cache(datasets[0], tmp_path)
    file = Path(pieces[1].file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    stream = load(datasets[0].folder, batch_size=64, cache_dir=tmp_path, verify=True)
    assert sum(len(batch["window"]) for batch in stream) == len(datasets[0]["train"])
    assert file.read_bytes() != whole  # a folder of its own: that of a split

    anew = cache_shards(
        datasets[0].manifest.name,
        datasets[0]["train"].shards,
        datasets[0]["train"].split.shards,
        tmp_path,
        None,
        verify=True,
    )
    assert copied(anew, tmp_path) == [True] * 4
    assert file.read_bytes() == whole


def test_many_processes_that_start_together_count_what_is_there(datasets: list[Dataset], tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    stop = threading.Event()

    def rename() -> None:
        while not stop.is_set():
            (folder / "a.part").write_bytes(b"1234")
            os.replace(folder / "a.part", folder / "a")

    thread = threading.Thread(target=rename)
    thread.start()
    try:
        counted = [_present(folder) for _ in range(2000)]
    finally:
        stop.set()
        thread.join()
    assert set(counted) <= {0, 4, 8}


def test_a_folder_that_is_deleted_meanwhile_is_told(datasets: list[Dataset], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    slow = slowly(datasets[0], folder, 1.0)
    wait_for_parts(folder)
    rmtree(folder)
    _, told = slow.communicate("", timeout=60)
    assert slow.returncode == 1
    assert f"shards.errors.OptionError: cache_dir {folder} cannot be written to: No such file" in told


def test_an_interrupted_copy_ends_at_once(datasets: list[Dataset], tmp_path: Path) -> None:
    first, second = (slowly(datasets[0], tmp_path / "cache", 1.5) for _ in range(2))
    wait_for_parts(tmp_path / "cache")
    time.sleep(0.3)
    for process in (first, second):
        process.send_signal(signal.SIGINT)
        _, told = process.communicate("", timeout=20)
        assert process.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in told
    assert present(tmp_path / "cache") == []


SLOWLY = """
import sys, time
from pathlib import Path
from shards import open_dataset
from shards.cache import cache_shards
from shards.files import FileState
from shards.remote_shard import RemoteShard

class Slow:
    def read(self, url, begin, end):
        time.sleep(float(sys.argv[3]))
        with open(sys.argv[2] + ".reads", "a") as log:
            log.write(url.rpartition("/")[2] + "\\n")
        return Path(url).read_bytes()[begin:end]

windows = open_dataset(sys.argv[1])["train"]
from dataclasses import replace
pieces = [
    replace(piece, remote=RemoteShard(str(windows.folder), shard.file, piece.state, Slow()))
    for piece, shard in zip(windows.shards, windows.split.shards)
]
held = cache_shards("out0", pieces, windows.split.shards, sys.argv[2])
print(sum(piece.remote is None for piece in held), flush=True)
sys.stdin.read()
"""


def slowly(dataset: Dataset, folder: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SLOWLY, str(dataset.folder), str(folder), str(seconds)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def wait_for_parts(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob("*/*.part")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_processes_share_the_work(datasets: list[Dataset], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    processes = [slowly(datasets[0], folder, 0.3) for _ in range(4)]
    told = [process.communicate("", timeout=100)[0] for process in processes]
    assert told == ["4\n"] * 4
    reads = Path(f"{folder}.reads").read_text().split()
    assert sorted(reads) == [shard.file for shard in datasets[0].manifest.splits[0].shards]  # each once
    assert not list(folder.glob("*/*.part"))


def test_a_process_that_is_killed_leaves_nothing_half(datasets: list[Dataset], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    killed = slowly(datasets[0], folder, 60)
    wait_for_parts(folder)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert present(folder) == [] or all(name.endswith(".part") for name in present(folder))
    pieces = cache(datasets[0], folder)
    assert copied(pieces, folder) == [True] * 4
    assert not list(folder.glob("*/*.part"))


def test_copies_come_from_anything_that_fsspec_opens(datasets: list[Dataset], tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    for file in Path(datasets[0].folder).iterdir():
        files.pipe(f"/datasets/{file.name}", file.read_bytes())
    try:
        there = open_dataset("memory://datasets")
        assert there.manifest == datasets[0].manifest
        assert there["train"][5]["window"].tobytes() == datasets[0]["train"][5]["window"].tobytes()
        assert copied(cache(there, tmp_path), tmp_path) == [True] * 4
        plain = [batch["window"].numpy().tobytes() for batch in load(datasets[0].folder, batch_size=64, seed=1)]
        for options in ({"cache_dir": tmp_path}, {}):
            stream = load("memory://datasets", batch_size=64, seed=1, **options)
            assert plain == [batch["window"].numpy().tobytes() for batch in stream]
    finally:
        files.rm("/datasets", recursive=True)
