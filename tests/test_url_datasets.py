"""Datasets at URLs, by a file system that fsspec keeps in memory: the same windows, from few and large ranges."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import reader.stream
from conftest import BuildHere, SaveEpisodes
from reader import load
from reader.ahead import Ahead
from shards import Dataset, DatasetNotFoundError, ManifestError, OptionError, ShardError, open_dataset
from shards.files import FileState
from shards.remote import FSSPEC, Fsspec, is_url, place_of
from shards.remote_shard import RemoteShard
from shards.verify import verify

URL = "memory://datasets/out"


@pytest.fixture(scope="module", params=[{}, {"windows_per_record": 4}, {"tail": "pad", "stride": 2}], ids=str)
def dataset(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
) -> Iterator[Dataset]:
    """A local dataset, of which a copy is at URL, and its episodes at memory://datasets/in."""
    folder = tmp_path_factory.mktemp("urls")
    arrays = [np.random.default_rng(i).standard_normal((900 + i, 4)).astype(np.float32) for i in range(5)]
    inputs = save_episodes(folder / "in", arrays)
    options = {"window_length": 16, "shift": 5, "num_shards": 3, **request.param}
    built = build_here(inputs, folder / "out", **options)
    files = fsspec.filesystem("memory")
    for place in (folder / "in", folder / "out"):
        for file in place.iterdir():
            files.pipe(f"/datasets/{place.name}/{file.name}", file.read_bytes())
    yield built
    files.rm("/datasets", recursive=True)


def values(dataset: Any) -> list[dict[str, bytes]]:
    return [{name: np.asarray(part).tobytes() for name, part in batch.items()} for batch in dataset]


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"shuffle": False},
        {"provenance": True, "seed": 1},
        {"verify": True},
        {"resident": True},
        {"pool": 1},
    ],
    ids=str,
)
def test_the_stream_is_the_local_one(dataset: Dataset, options: dict[str, Any]) -> None:
    here = values(load(dataset.folder, batch_size=50, **options))
    assert len(here) == -(-len(dataset["train"]) // 50)
    assert values(load(URL, batch_size=50, **options)) == here


def test_windows_are_the_local_ones(dataset: Dataset) -> None:
    here, there = dataset["train"], open_dataset(URL + "/")["train"]
    indices = np.random.default_rng(0).integers(len(here), size=100)
    for name, part in there[indices].items():
        np.testing.assert_array_equal(part, here[indices][name])
    assert [there.locate(i) for i in (0, 9)] == [here.locate(i) for i in (0, 9)]
    assert there[3:5]["window"].tobytes() == here[3:5]["window"].tobytes()


def test_a_dataset_at_a_url_is_verified_against_a_source_there(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shards.verify.side_by_side.core_count", lambda: 1)  # a file in memory has one place for all
    assert verify(URL, "memory://datasets/in") == []


def test_ranges_are_read_once_and_whole(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[tuple[str, int, int]] = []
    read = Fsspec.read

    def recorded(self: Fsspec, url: str, begin: int, end: int) -> bytes:
        ranges.append((url, begin, end))
        return read(self, url, begin, end)

    monkeypatch.setattr(Fsspec, "read", recorded)
    stream = load(URL, batch_size=50)
    assert [url for url, _, _ in ranges] == [f"{URL}/manifest.json"]
    ranges.clear()
    values(stream)
    shards = dataset.manifest.splits[0].shards
    assert sorted(ranges) == [(f"{URL}/{shard.file}", 0, shard.bytes) for shard in shards]


def test_what_does_not_fit_into_memory_is_a_mistake(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.stream, "free_bytes", lambda device: 1000)
    with pytest.raises(OptionError, match=r"must be in memory: choose a smaller pool than 64, or a cache_dir"):
        load(URL, batch_size=50)
    with pytest.raises(OptionError, match=r"must be in memory: choose a cache_dir"):
        load(URL, batch_size=50, shuffle=False)
    load(dataset.folder, batch_size=50)  # reads windows one by one


def test_what_is_wrong_at_a_url_is_told(dataset: Dataset) -> None:
    files, shard = fsspec.filesystem("memory"), dataset.manifest.splits[0].shards[1]
    whole = files.cat(f"/datasets/out/{shard.file}")
    try:
        files.pipe(f"/datasets/out/{shard.file}", whole[:-8])
        with pytest.raises(
            ShardError, match=f"shard {URL}/{shard.file} has {shard.bytes - 8} bytes where the manifest"
        ):
            load(URL, batch_size=50)
        stream = open_dataset(URL, FSSPEC)
        files.rm(f"/datasets/out/{shard.file}")
        with pytest.raises(ShardError, match=f"shard {URL}/{shard.file} cannot be read: No such file"):
            stream["train"]
        assert verify(URL)[0].startswith(f"{shard.file} cannot be read")
    finally:
        files.pipe(f"/datasets/out/{shard.file}", whole)
    with pytest.raises(DatasetNotFoundError, match="no dataset at 'memory://datasets/in'"):
        load("memory://datasets/in", batch_size=1)


class Stored:
    """`RemoteFiles` with one file, whose bytes and state are what they are made."""

    def __init__(self, data: bytes) -> None:
        self.data, self.version, self.looks = data, 1, 0

    def read(self, url: str, begin: int, end: int) -> bytes:
        return self.data[begin:end]

    def states(self, folder: str, names: Any) -> dict[str, FileState]:
        self.looks += 1
        return {name: FileState(len(self.data), self.version) for name in names}


def read_bytes(shard: RemoteShard, nbytes: int) -> bytes:
    memory = memoryview(bytearray(nbytes))
    shard.read(memory, [(0, 0, nbytes)])
    shard.check()
    return memory.tobytes()


def test_a_shard_that_was_replaced_is_refused_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("shards.remote_shard.time.monotonic", lambda: now[0])
    store = Stored(b"12345")
    shard = RemoteShard("x://b", "s", FileState(5, 1), store)
    now[0] = 59.0
    assert (read_bytes(shard, 5), store.looks) == (b"12345", 0)
    now[0] = 61.0
    assert (read_bytes(shard, 5), store.looks) == (b"12345", 1)

    store.data, store.version = b"54321", 2
    now[0] = 122.0
    ahead = Ahead(lambda i: read_bytes(shard, 5), 4)
    for _ in range(3):  # whoever reads ahead tries again
        with pytest.raises(ShardError, match="shard x://b/s has changed since the dataset was opened; open it again"):
            ahead(0)
    assert store.looks == 2


def test_a_shard_that_has_become_shorter_is_refused_for_good() -> None:
    store = Stored(b"1234")
    shard = RemoteShard("x://b", "s", FileState(5, 1), store)
    for data in (b"1234", b"12345"):
        store.data = data
        with pytest.raises(ShardError, match="has changed since"):
            read_bytes(shard, 5)


def test_a_server_that_sends_whole_files_is_told() -> None:
    class Whole(Stored):
        def read(self, url: str, begin: int, end: int) -> bytes:
            return self.data

    with pytest.raises(ShardError, match="the server sends more than the range that it is asked for; copy the dataset"):
        read_bytes(RemoteShard("x://b", "s", FileState(5, 1), Whole(b"12345")), 3)


def test_files_that_may_not_be_listed_can_be_read(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, path: str, **options: Any) -> None:
        raise RuntimeError("403 Forbidden")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "ls", refuse)
    assert values(load(URL, batch_size=50)) == values(load(dataset.folder, batch_size=50))


def test_what_a_client_raises_while_a_file_is_read_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("memory")
    files.pipe("/one/file", b"1234")
    opened = FSSPEC.open("memory://one/file")
    monkeypatch.setattr(type(opened._opened), "read", lambda self, size=-1: 1 / 0)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match=r"^memory://one/file: division by zero$"):
        opened.read(2)
    files.rm("/one", recursive=True)


@pytest.mark.parametrize("url", ["github://x/y", "sftp://127.0.0.1:1/x"])
def test_stores_that_cannot_be_opened_are_told(url: str) -> None:
    with pytest.raises((OptionError, ManifestError), match=f"^{url}|{url}/manifest.json"):
        open_dataset(url)


def test_a_manifest_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("memory")
    files.pipe("/large/manifest.json", b" " * 2000)
    monkeypatch.setattr("shards.manifest_file.MAX_MANIFEST_BYTES", 1000)
    with pytest.raises(ManifestError, match=r"large/manifest\.json cannot be read: it has more than 1000 bytes"):
        open_dataset("memory://large")
    files.rm("/large", recursive=True)


@pytest.mark.parametrize(
    ("path", "url"), [("gs://b/c", True), ("s3a://b", True), ("/a/b", False), ("a:b", False), (Path("gs:/b"), False)]
)
def test_urls_are_told_from_paths(path: str | Path, url: bool) -> None:
    assert is_url(path) == url
    assert isinstance(place_of(path), str) == url
