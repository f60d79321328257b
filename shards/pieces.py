"""Pieces of shards: what is read in one go, and the state in which its file was when the dataset was opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from .errors import ShardError
from .files import FileState
from .manifest import Manifest, Shard

#: Large against the cost of a request to a file server, small against memory.
PIECE_BYTES = 2**22


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
