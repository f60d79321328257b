"""Pieces of shards: how shards are cut, and a piece mapped bit for bit, wherever in its file it lies."""

import errno
import mmap
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes
from shards import ShardError, open_dataset
from shards.manifest import Manifest, Shard
from shards.pieces import PIECE_BYTES, Piece, cut_shards, map_piece, whole_shards

RECORD = 1000


@pytest.fixture(scope="module")
def manifest(
    tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere
) -> dict[int, Manifest]:
    """By the windows of a record."""
    root = tmp_path_factory.mktemp("pieces")
    inputs = save_episodes(root / "in", [np.arange(50, dtype=np.float32)])
    return {
        per_record: build_here(
            inputs, root / str(per_record), window_length=5, shift=1, windows_per_record=per_record
        ).manifest
        for per_record in (1, 4)
    }


def shards_of(sizes: list[tuple[int, int]]) -> list[Shard]:
    return [
        Shard(file=f"s{i}", records=records, windows=records, bytes=records * record_bytes, sha256="")
        for i, (records, record_bytes) in enumerate(sizes)
    ]


@given(
    st.lists(st.tuples(st.integers(1, 150), st.sampled_from([1, 40_000, 2**20, 2**23, 2**25])), min_size=1, max_size=5)
)
def test_pieces_are_all_records_of_each_shard_once_and_none_is_large(
    manifest: dict[int, Manifest], sizes: list[tuple[int, int]]
) -> None:
    shards = shards_of(sizes)
    pieces = cut_shards("folder", shards, manifest[1])
    assert list(dict.fromkeys(piece.file for piece in pieces)) == [f"folder/{shard.file}" for shard in shards]
    for shard, (records, record_bytes) in zip(shards, sizes, strict=True):
        mine = [piece for piece in pieces if piece.file == f"folder/{shard.file}"]
        assert {piece.file_bytes for piece in mine} == {shard.bytes}
        assert [piece.first for piece in mine] == [sum(p.records for p in mine[:i]) for i in range(len(mine))]
        assert sum(piece.records for piece in mine) == records
        assert all(piece.windows == piece.records > 0 for piece in mine)
        assert max(piece.records for piece in mine) - min(piece.records for piece in mine) <= 1
        assert all(piece.records * record_bytes <= PIECE_BYTES + record_bytes for piece in mine)
        assert len(mine) <= -(-shard.bytes // PIECE_BYTES)


def test_shards_of_shared_records_are_not_cut(manifest: dict[int, Manifest]) -> None:
    shards = [Shard(file="s0", records=300, windows=1100, bytes=100 * PIECE_BYTES, sha256="")]
    assert cut_shards("folder", shards, manifest[4]) == whole_shards("folder", shards)
    assert whole_shards("folder", shards) == [Piece("folder/s0", 100 * PIECE_BYTES, 0, 300, 1100)]


def test_two_pieces_and_a_byte_are_cut_into_three(manifest: dict[int, Manifest]) -> None:
    record_bytes = PIECE_BYTES // 8
    (shard,) = shards_of([(17, record_bytes)])
    assert [(piece.first, piece.records) for piece in cut_shards("f", [shard], manifest[1])] == [
        (0, 5),
        (5, 6),
        (11, 6),
    ]


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(3).integers(0, 256, 100 * RECORD, np.uint8).tobytes()


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "shard").write_bytes(content)
    return tmp_path / "shard"


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("first", "records"), [(0, 100), (0, 1), (1, 1), (4, 9), (5, 90), (99, 1), (98, 2)])
def test_a_piece_is_mapped_bit_for_bit_wherever_it_begins(
    file: Path, content: bytes, first: int, records: int, ahead: bool
) -> None:
    found = map_piece(Piece(str(file), len(content), first, records, records), RECORD, ahead)
    assert (found.shape, found.dtype) == ((records, RECORD), np.uint8)
    assert found.tobytes() == content[first * RECORD : (first + records) * RECORD]


def test_a_piece_may_begin_at_a_page(tmp_path: Path) -> None:
    page = mmap.ALLOCATIONGRANULARITY
    values = np.arange(3 * page // 4, dtype=np.uint32)
    values.tofile(tmp_path / "shard")
    assert (
        map_piece(Piece(str(tmp_path / "shard"), 3 * page, 1, 1, 1), page).tobytes()
        == values.tobytes()[page : 2 * page]
    )


def test_nobody_can_write_to_a_piece(file: Path, content: bytes) -> None:
    found = map_piece(Piece(str(file), len(content), 3, 2, 2), RECORD)
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.flags.writeable = True
    assert file.read_bytes() == content


def test_a_piece_lives_on_when_its_file_is_deleted(file: Path, content: bytes) -> None:
    found = map_piece(Piece(str(file), len(content), 3, 2, 2), RECORD)
    file.unlink()
    assert found.tobytes() == content[3 * RECORD : 5 * RECORD]


@pytest.mark.parametrize("change", [-50 * RECORD, -1, 1])
def test_a_file_of_another_size_is_refused_even_where_the_piece_is_whole(
    file: Path, content: bytes, change: int
) -> None:
    piece = Piece(str(file), len(content), 0, 10, 10)
    if change < 0:
        os.truncate(file, len(content) + change)
    else:
        file.write_bytes(content + b"x" * change)
    with pytest.raises(ShardError, match=r"shard .*shard has changed since the dataset was opened; open it again"):
        map_piece(piece, RECORD)


def test_a_file_that_is_gone_or_no_file_is_named(tmp_path: Path, file: Path, content: bytes) -> None:
    piece = Piece(str(tmp_path / "gone"), len(content), 0, 1, 1)
    with pytest.raises(ShardError, match=r"gone cannot be read: .*No such file.*; copy the dataset again"):
        map_piece(piece, RECORD)
    with pytest.raises(ShardError, match=r"cannot be read: .*Is a directory"):
        map_piece(replace(piece, file=str(tmp_path)), RECORD)


def test_too_many_open_files_are_named_as_such(file: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ShardError, match=r"Too many open files; allow more open files \(ulimit -n\)"):
        map_piece(Piece(str(file), len(content), 0, 1, 1), RECORD)


def test_pieces_of_real_shards_joined_are_the_shards(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.arange(900, dtype=np.float32) + i for i in range(3)])
    build_here(inputs, tmp_path / "out", window_length=5, shift=1, num_shards=2)
    dataset = open_dataset(tmp_path / "out")
    record_bytes, shards = dataset.manifest.layout.record_bytes, dataset["train"].split.shards
    monkeypatch.setattr("shards.pieces.PIECE_BYTES", 10_000)
    pieces = cut_shards(dataset.folder, shards, dataset.manifest)
    assert len(pieces) > 10
    for shard in shards:
        joined = b"".join(map_piece(p, record_bytes).tobytes() for p in pieces if p.file.endswith(shard.file))
        assert joined == (tmp_path / "out" / shard.file).read_bytes()
