"""Windows copied from mapped shards into batches: what the stream spends its time on."""

import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shards.dataset import map_records
from shards.manifest import Split
from shards.record import Field, RecordLayout

# Records this large are copied one by one; smaller ones are taken whole, in blocks that stay in the second-level cache,
# since `take` into given memory is the fastest copy of scattered rows that NumPy has.
_LARGE_RECORD = 2**14
_BLOCK_BYTES = 2**17


class Gatherer:
    """Copies windows of a split, wherever they lie, into arrays. Safe to call from several threads.

    It keeps up to `maps` shards mapped, each of which holds a file descriptor.
    """

    def __init__(self, folder: Path, split: Split, layout: RecordLayout, fields: Sequence[Field], maps: int) -> None:
        self._fields = fields
        self._records = lru_cache(maxsize=maps)(lambda i: map_records(folder, split.shards[i], layout))
        self._local = threading.local()
        self._block = max(1, _BLOCK_BYTES // layout.record_bytes)
        self._large = layout.record_bytes >= _LARGE_RECORD

    def gather(self, shards: NDArray[np.int64], rows: NDArray[np.int64], outs: Sequence[NDArray[np.uint8]]) -> None:
        """outs[f][j] = the bytes of field f of record rows[j] of shard shards[j]; outs[f] is (n, bytes of f)."""
        narrow = np.min_scalar_type(int(shards.max()))  # NumPy sorts 8 and 16 bits several times faster than 64
        order = np.argsort(shards.astype(narrow), kind="stable")
        ends = np.flatnonzero(np.diff(shards[order], append=-1)) + 1
        begin = 0
        for end in ends.tolist():
            chosen = order[begin:end]
            records = self._records(int(shards[chosen[0]]))
            if self._large:
                self._copy_rows(records, rows[chosen], chosen, outs)
            else:
                self._take_blocks(records, rows[chosen], chosen, outs)
            begin = end

    def _copy_rows(
        self, records: NDArray[np.uint8], rows: NDArray[np.int64], places: NDArray[np.int64], outs: Sequence[np.ndarray]
    ) -> None:
        for field, out in zip(self._fields, outs, strict=True):
            data = records[:, field.offset : field.offset + field.nbytes]
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                out[place] = data[row]

    def _take_blocks(
        self, records: NDArray[np.uint8], rows: NDArray[np.int64], places: NDArray[np.int64], outs: Sequence[np.ndarray]
    ) -> None:
        room = getattr(self._local, "room", None)
        if room is None:
            room = self._local.room = np.empty((self._block, records.shape[1]), np.uint8)
        for at in range(0, len(rows), self._block):
            some = rows[at : at + self._block]
            taken = room[: len(some)]
            records.take(some, axis=0, out=taken, mode="clip")  # in bounds; "raise" would copy through a buffer
            for field, out in zip(self._fields, outs, strict=True):
                out[places[at : at + self._block]] = taken[:, field.offset : field.offset + field.nbytes]
