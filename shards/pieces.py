"""Pieces of shards: what is read in one go, and the state in which its file was when the dataset was opened."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .errors import ShardError
from .files import FileState
from .manifest import Manifest, Shard
from .remote import FSSPEC, Place, RemoteFiles, is_url, states_of, why
from .remote_shard import RemoteShard

#: Large against the cost of a request to a file server, small against memory.
PIECE_BYTES = 2**22


@dataclass(frozen=True)
class Piece:
    """`records` records of a shard's file, from record `first` on, with `windows` windows in them.

    `state` is that in which the file must be whenever it is read; `remote` is it, if it is at a URL;
    `held` keeps the file where it is as long as someone has the piece.
    """

    file: str
    state: FileState
    first: int
    records: int
    windows: int
    remote: RemoteShard | None = None
    held: object = None


def whole_shards(folder: Place, shards: Sequence[Shard], remote: RemoteFiles | None = None) -> list[Piece]:
    """A piece for each shard, in the state it has now.

    Errors: ShardError unless each is there and has the manifest's size.
    """
    try:
        states = states_of(folder, [shard.file for shard in shards], remote)
    except OSError as error:
        raise ShardError(f"the shards in {folder} cannot be read: {why(error)}") from error
    pieces = []
    for shard in shards:
        file, state = f"{folder}/{shard.file}", states.get(shard.file)
        if state is None:
            raise ShardError(f"shard {file} cannot be read: {os.strerror(errno.ENOENT)}; copy the dataset again")
        if state.size != shard.bytes:
            raise ShardError(
                f"shard {file} has {state.size} bytes where the manifest says {shard.bytes}: it was cut short or"
                " replaced; copy or build the dataset again"
            )
        there = RemoteShard(str(folder), shard.file, state, remote or FSSPEC) if is_url(folder) else None
        pieces.append(Piece(file, state, 0, shard.records, shard.windows, there))
    return pieces


def cut_shards(whole: Sequence[Piece], manifest: Manifest) -> list[Piece]:
    """Pieces of about PIECE_BYTES or less; whole shards where only the records say how many windows they hold."""
    if manifest.window.per_record > 1:
        return list(whole)
    pieces = []
    for shard in whole:
        count = -(-shard.state.size // PIECE_BYTES)
        ends = [i * shard.records // count for i in range(count + 1)]
        pieces += [
            replace(shard, first=begin, records=end - begin, windows=end - begin)
            for begin, end in pairwise(ends)
            if end > begin
        ]
    return pieces
