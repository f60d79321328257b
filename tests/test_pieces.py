"""Pieces of shards: how shards are cut, and the state of their files."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes
from shards import ShardError
from shards.files import FileState
from shards.manifest import Manifest, Shard
from shards.pieces import PIECE_BYTES, Piece, cut_shards, whole_shards


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


def whole(shards: list[Shard]) -> list[Piece]:
    return [Piece(f"folder/{s.file}", FileState(s.bytes, 0), 0, s.records, s.windows) for s in shards]


@given(
    st.lists(st.tuples(st.integers(1, 150), st.sampled_from([1, 40_000, 2**20, 2**23, 2**25])), min_size=1, max_size=5)
)
def test_pieces_are_all_records_of_each_shard_once_and_none_is_large(
    manifest: dict[int, Manifest], sizes: list[tuple[int, int]]
) -> None:
    shards = shards_of(sizes)
    pieces = cut_shards(whole(shards), manifest[1])
    assert list(dict.fromkeys(piece.file for piece in pieces)) == [f"folder/{shard.file}" for shard in shards]
    for shard, (records, record_bytes) in zip(shards, sizes, strict=True):
        mine = [piece for piece in pieces if piece.file == f"folder/{shard.file}"]
        assert {piece.state for piece in mine} == {FileState(shard.bytes, 0)}
        assert [piece.first for piece in mine] == [sum(p.records for p in mine[:i]) for i in range(len(mine))]
        assert sum(piece.records for piece in mine) == records
        assert all(piece.windows == piece.records > 0 for piece in mine)
        assert max(piece.records for piece in mine) - min(piece.records for piece in mine) <= 1
        assert all(piece.records * record_bytes <= PIECE_BYTES + record_bytes for piece in mine)
        assert len(mine) <= -(-shard.bytes // PIECE_BYTES)


def test_shards_of_shared_records_are_not_cut(manifest: dict[int, Manifest]) -> None:
    shards = [Shard(file="s0", records=300, windows=1100, bytes=100 * PIECE_BYTES, sha256="")]
    assert cut_shards(whole(shards), manifest[4]) == [Piece("folder/s0", FileState(100 * PIECE_BYTES, 0), 0, 300, 1100)]


def test_two_pieces_and_a_byte_are_cut_into_three(manifest: dict[int, Manifest]) -> None:
    record_bytes = PIECE_BYTES // 8
    (shard,) = shards_of([(17, record_bytes)])
    assert [(piece.first, piece.records) for piece in cut_shards(whole([shard]), manifest[1])] == [
        (0, 5),
        (5, 6),
        (11, 6),
    ]


def test_a_shard_is_given_with_the_state_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "s0").write_bytes(bytes(80))
    os.utime(tmp_path / "s0", ns=(1, 1_234_567_890_123_456_789))
    (shard,) = shards_of([(2, 40)])
    (piece,) = whole_shards(tmp_path, [shard])
    assert piece == Piece(f"{tmp_path}/s0", FileState(80, 1_234_567_890_123_456_789), 0, 2, 2)
    with pytest.raises(ShardError, match=r"s0 has 80 bytes where the manifest says 81: it was cut short or replaced;"):
        whole_shards(tmp_path, [replace(shard, bytes=81)])
    with pytest.raises(ShardError, match=r"none cannot be read: No such file or directory; copy the dataset again"):
        whole_shards(tmp_path, [replace(shard, file="none")])
