"""The two ways to windows: pieces of shards are read whole, ahead of time, or windows are read one by one."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

from shards.dataset import Windows
from shards.features import Feature
from shards.gather import Gatherer, Records
from shards.manifest import Manifest
from shards.memory import Buffers
from shards.pieces import Piece
from shards.shard_file import open_shard, read_piece
from shards.windows import Int64s

T = TypeVar("T")

_READERS = 8  # pieces read at a time: file servers serve many requests side by side
_REMOTE_READERS = 24  # a request to an object store takes some 100 ms, most of which is waiting


class Ahead(Generic[T]):
    """`ahead(i)` is read(i), as soon as it is there; `expect` has it done before it is needed.

    The last `keep` that were asked for, or expected, stay. Safe to use from several threads.
    """

    def __init__(self, read: Callable[[int], T], keep: int, readers: int = _READERS) -> None:
        executor = ThreadPoolExecutor(readers, thread_name_prefix="read-ahead")
        weakref.finalize(self, executor.shutdown, wait=False, cancel_futures=True)
        self._lock, self._keep = Lock(), keep
        self._read: Callable[[int], Future[T]] = lambda i: executor.submit(read, i)
        self._reading: OrderedDict[int, Future[T]] = OrderedDict()  # the last asked for comes last

    def __call__(self, i: int) -> T:
        """What was read for i. Errors: those of `read`; the next call tries again."""
        with self._lock:
            reading = self._begin(i)
        return reading.result()

    def expect(self, numbers: Int64s) -> None:
        """Begin to read these, if they are not there."""
        with self._lock:
            for i in numbers[: self._keep].tolist():
                self._begin(i)

    def _begin(self, i: int) -> "Future[T]":
        reading = self._reading.pop(i, None)
        if reading is None or (reading.done() and reading.exception() is not None):
            reading = self._read(i)
        self._reading[i] = reading
        if len(self._reading) > self._keep:
            self._reading.popitem(last=False)
        return reading


class WholePieces:
    """Windows gathered from pieces, each read whole and ahead of time, of which the last `keep` stay in memory."""

    def __init__(self, manifest: Manifest, columns: Sequence[Feature], pieces: Sequence[Piece], keep: int) -> None:
        nbytes = manifest.layout.record_bytes
        readers = _READERS if all(piece.remote is None for piece in pieces) else _REMOTE_READERS
        buffers = Buffers(max(piece.records for piece in pieces) * nbytes, readers)

        def read(i: int) -> Records:
            raw = buffers.array((pieces[i].records, nbytes), np.dtype(np.uint8))
            read_piece(pieces[i], raw)
            return Records(manifest, pieces[i], raw)

        self._gatherer, self._ahead = Gatherer(manifest, columns), Ahead(read, keep, readers)
        self.expect = self._ahead.expect

    def gather(self, pieces: Int64s, rows: Int64s, outs: Sequence[np.ndarray]) -> None:
        """outs[c][j] = column c of window rows[j] of piece pieces[j]. Errors: ShardError."""
        self._gatherer.gather(self._ahead, pieces, rows, outs)


class SingleWindows:
    """Windows read one by one; the system is told of the pieces they lie in beforehand, once while `keep` are."""

    def __init__(
        self, windows: Windows, columns: tuple[Feature, ...], pieces: Sequence[Piece], record_bytes: int, keep: int
    ) -> None:
        self._windows, self._columns = windows, columns
        self._firsts = np.cumsum([0, *(piece.windows for piece in pieces)])

        def advise(i: int) -> None:
            open_shard(pieces[i]).advise(pieces[i].first * record_bytes, pieces[i].records * record_bytes)

        self.expect = Ahead(advise, keep).expect

    def gather(self, pieces: Int64s, rows: Int64s, outs: Sequence[np.ndarray]) -> None:
        """As of `WholePieces`."""
        self._windows.fetch(self._firsts[pieces] + rows, self._columns, outs)
