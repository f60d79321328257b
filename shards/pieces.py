"""Pieces of shards: what is read in one go, and the state in which its file was when the dataset was opened."""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import ShardError
from .manifest import Manifest, Shard

#: Large against the cost of a request to a file server, small against memory.
PIECE_BYTES = 2**22


@dataclass(frozen=True)
class FileState:
    """What a file cannot be written to, cut short or replaced without another of: bytes, and when it was last written.

    The number of the file itself is not among it: file systems of servers give the same file other ones.
    """

    size: int
    mtime_ns: int

    @staticmethod
    def of(found: os.stat_result) -> "FileState":
        """That of a file, from what the system says of it."""
        return FileState(found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Piece:
    """`records` records of a shard's file, from record `first` on, with `windows` windows in them.

    `state` is that in which the file must be whenever it is read.
    """

    file: str
    state: FileState
    first: int
    records: int
    windows: int


def check_shard(folder: str | Path, shard: Shard) -> FileState:
    """The state of a shard. Errors: ShardError unless it is there and has the manifest's size."""
    file = Path(folder) / shard.file
    try:
        state = FileState.of(file.stat())
    except OSError as error:
        raise ShardError(f"shard {file} cannot be read: {error.strerror}; copy the dataset again") from error
    if state.size != shard.bytes:
        raise ShardError(
            f"shard {file} has {state.size} bytes where the manifest says {shard.bytes}: it was cut short or replaced;"
            " copy or build the dataset again"
        )
    return state


def whole_shards(folder: str | Path, shards: Sequence[Shard]) -> list[Piece]:
    """A piece for each shard, in the state it has now. Errors: ShardError as of `check_shard`."""
    return [
        Piece(f"{folder}/{shard.file}", check_shard(folder, shard), 0, shard.records, shard.windows) for shard in shards
    ]


def cut_shards(whole: Sequence[Piece], manifest: Manifest) -> list[Piece]:
    """Pieces of about PIECE_BYTES or less; whole shards where only the records say how many windows they hold."""
    if manifest.window.per_record > 1:
        return list(whole)
    pieces = []
    for shard in whole:
        count = -(-shard.state.size // PIECE_BYTES)
        ends = [i * shard.records // count for i in range(count + 1)]
        pieces += [
            Piece(shard.file, shard.state, begin, end - begin, end - begin)
            for begin, end in pairwise(ends)
            if end > begin
        ]
    return pieces


def map_piece(piece: Piece, record_bytes: int) -> NDArray[np.uint8]:
    """The records of a whole shard as a read-only (records, record_bytes) view of the file. Errors: ShardError."""
    try:
        with Path(piece.file).open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), piece.records * record_bytes, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ShardError(f"shard {piece.file} cannot be read: {error}; copy the dataset again") from error
    return np.frombuffer(mapped, np.uint8).reshape(piece.records, record_bytes)
