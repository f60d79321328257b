"""Pieces of shards: what is mapped, or read, in one go."""

import errno
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import ShardError
from .manifest import Manifest, Shard

#: Large against the cost of a request to an object store, small against memory.
PIECE_BYTES = 2**22


@dataclass(frozen=True)
class Piece:
    """`records` records of a shard's file, from record `first` on, with `windows` windows in them.

    `file_bytes` is the size that the whole file must have.
    """

    file: str
    file_bytes: int
    first: int
    records: int
    windows: int


def whole_shards(folder: str | Path, shards: Sequence[Shard]) -> list[Piece]:
    """A piece for each shard."""
    return [Piece(f"{folder}/{shard.file}", shard.bytes, 0, shard.records, shard.windows) for shard in shards]


def cut_shards(folder: str | Path, shards: Sequence[Shard], manifest: Manifest) -> list[Piece]:
    """Pieces of about PIECE_BYTES or less; whole shards where only the records say how many windows they hold."""
    if manifest.window.per_record > 1:
        return whole_shards(folder, shards)
    pieces = []
    for whole in whole_shards(folder, shards):
        count = -(-whole.file_bytes // PIECE_BYTES)
        ends = [i * whole.records // count for i in range(count + 1)]
        pieces += [
            Piece(whole.file, whole.file_bytes, begin, end - begin, end - begin)
            for begin, end in pairwise(ends)
            if end > begin
        ]
    return pieces


def map_piece(piece: Piece, record_bytes: int, ahead: bool = False) -> NDArray[np.uint8]:
    """The records of a piece of a local shard as a read-only (records, record_bytes) view of the file.

    ahead: the system should read it from the disk now. Errors: ShardError.
    """
    begin, nbytes = piece.first * record_bytes, piece.records * record_bytes
    spare = begin % mmap.ALLOCATIONGRANULARITY
    try:
        with Path(piece.file).open("rb") as opened:
            size = opened.seek(0, 2)
            if size == piece.file_bytes:
                mapped = mmap.mmap(opened.fileno(), nbytes + spare, access=mmap.ACCESS_READ, offset=begin - spare)
    except (OSError, ValueError) as error:
        full = isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}
        remedy = "allow more open files (ulimit -n)" if full else "copy the dataset again"
        raise ShardError(f"shard {piece.file} cannot be read: {error}; {remedy}") from error
    if size != piece.file_bytes:
        raise ShardError(f"shard {piece.file} has changed since the dataset was opened; open it again")
    if ahead and hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    return np.frombuffer(mapped, np.uint8, nbytes, spare).reshape(piece.records, record_bytes)
