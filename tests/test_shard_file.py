"""Plain reads of shards: bit for bit, and errors that name the file when it cannot be read or has changed."""

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shards import ShardError
from shards.files import FileState
from shards.pieces import Piece
from shards.shard_file import ShardFile, check_digests, read_piece

RECORD = 1000
CHANGED = r"shard .*shard has changed since the dataset was opened; open it again$"


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(3).integers(0, 256, 100 * RECORD, np.uint8).tobytes()


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "shard").write_bytes(content)
    return tmp_path / "shard"


def piece_of(file: Path, first: int = 0, records: int = 100) -> Piece:
    return Piece(str(file), FileState.of(file.stat()), first, records, records)


def read(piece: Piece) -> bytes:
    found = np.empty((piece.records, RECORD), np.uint8)
    read_piece(piece, found)
    return found.tobytes()


@pytest.mark.parametrize("at_once", [2**30, 1700])
@pytest.mark.parametrize(("first", "records"), [(0, 100), (0, 1), (1, 1), (4, 9), (5, 90), (99, 1), (98, 2)])
def test_a_piece_is_read_bit_for_bit_wherever_it_begins(
    file: Path, content: bytes, first: int, records: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardFile, "most_bytes", at_once)
    assert read(piece_of(file, first, records)) == content[first * RECORD : (first + records) * RECORD]


def test_reads_that_come_in_parts_are_joined(file: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: preadv(fd, [parts[0][:777]], at))
    assert read(piece_of(file, 3, 20)) == content[3 * RECORD : 23 * RECORD]


def test_ranges_go_to_their_places(file: Path, content: bytes) -> None:
    memory = bytearray(b"." * 12)
    ShardFile(piece_of(file)).read(memoryview(memory), [(8, 500, 3), (1, 99_998, 2)])
    assert bytes(memory) == b"." + content[-2:] + b"....." + content[500:503] + b"."


@pytest.mark.parametrize("size", [0, 50 * RECORD, 100 * RECORD - 1, 100 * RECORD + 1])
@pytest.mark.parametrize(("first", "records"), [(0, 10), (90, 10)])
def test_a_file_of_another_size_is_named_even_where_the_piece_is_whole(
    file: Path, size: int, first: int, records: int
) -> None:
    piece = piece_of(file, first, records)
    os.truncate(file, size)
    os.utime(file, ns=(0, piece.state.modified))
    with pytest.raises(ShardError, match=CHANGED):
        read(piece)


def test_a_file_that_was_written_to_or_replaced_is_named(file: Path, content: bytes) -> None:
    os.utime(file, ns=(0, 10**18))
    piece = piece_of(file)
    with file.open("r+b") as opened:
        opened.write(content[:1])  # what it was
    with pytest.raises(ShardError, match=CHANGED):
        read(piece)
    piece = piece_of(file)
    os.utime(file, ns=(0, 10**18))
    with pytest.raises(ShardError, match=CHANGED):
        read(piece)
    piece = piece_of(file)
    (file.parent / "other").write_bytes(content)
    (file.parent / "other").replace(file)
    with pytest.raises(ShardError, match=CHANGED):
        read(piece)


def test_an_open_shard_that_is_deleted_is_read_on(file: Path, content: bytes) -> None:
    opened, memory = ShardFile(piece_of(file)), bytearray(RECORD)
    file.unlink()
    opened.read(memoryview(memory), [(0, 0, RECORD)])
    opened.check()
    assert bytes(memory) == content[:RECORD]


def test_a_shard_is_closed_with_its_last_holder(file: Path) -> None:
    def count() -> int:
        return len(os.listdir("/dev/fd"))

    before = count()
    opened = ShardFile(piece_of(file))
    assert count() == before + 1
    del opened
    assert count() == before


def test_a_file_that_is_gone_or_no_file_is_named(tmp_path: Path, file: Path) -> None:
    piece = piece_of(file)
    with pytest.raises(ShardError, match=r"gone cannot be read: No such file or directory; copy the dataset again"):
        read(replace(piece, file=str(tmp_path / "gone")))
    with pytest.raises(ShardError, match=r"cannot be read: Is a directory"):
        read(replace(piece, file=str(tmp_path)))


@pytest.mark.parametrize(
    ("call", "number", "message"),
    [
        ("open", errno.EMFILE, r"shard cannot be read: Too many open files; allow more open files \(ulimit -n\)"),
        ("preadv", errno.EIO, "shard cannot be read: Input/output error; copy the dataset again"),
        ("fstat", errno.ESTALE, "shard cannot be read: Stale file handle; copy the dataset again"),
    ],
)
def test_what_the_system_refuses_is_named(
    file: Path, call: str, number: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = piece_of(file)

    def refuse(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    def read_refused() -> None:
        with monkeypatch.context() as patch:  # pytest itself needs these
            patch.setattr(os, call, refuse)
            read(piece)

    with pytest.raises(ShardError, match=message):
        read_refused()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be told")
def test_the_system_is_told_of_all_bytes_in_parts_that_it_reads_ahead(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, at, nbytes, what: told.append((at, nbytes, what)))
    ShardFile(piece_of(file)).advise(10, 300_000)
    assert told == [(at, n, os.POSIX_FADV_WILLNEED) for at, n in [(10, 2**17), (131_082, 2**17), (262_154, 37_856)]]


def test_a_flipped_bit_is_found_by_its_digest(file: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shards.shard_file._HASHED_BYTES", 7777)
    digest = hashlib.sha256(content).hexdigest()
    (file.parent / "other").write_bytes(content[:50_000] + bytes([content[50_000] ^ 1]) + content[50_001:])
    whole, flipped = piece_of(file), piece_of(file.parent / "other")
    check_digests([whole, whole], [digest, digest])
    with pytest.raises(ShardError, match=r"other is damaged: its SHA-256 is not the manifest's; copy or build the dat"):
        check_digests([whole, flipped], [digest, digest])
    os.truncate(file, 100 * RECORD - 1)
    with pytest.raises(ShardError, match=CHANGED):
        check_digests([whole], [digest])


def test_a_pipe_that_has_taken_a_shards_place_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(80))
    piece = Piece(f"{tmp_path}/shard", FileState.of((tmp_path / "shard").stat()), 0, 2, 2)
    (tmp_path / "shard").unlink()
    os.mkfifo(tmp_path / "shard")

    with pytest.raises(ShardError, match=f"shard {tmp_path}/shard (cannot be read|has changed)"):
        read_piece(piece, np.empty((2, 40), np.uint8))
