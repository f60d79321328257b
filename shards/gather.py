"""Windows copied from pieces of shards into arrays: what reading spends its time on.

Rows of a piece are its windows, numbered through its records. Where a record holds several windows, they are cut from
its steps here, as late as can be.
"""

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import OptionError, ShardError
from .features import Feature
from .manifest import Manifest
from .pieces import Piece
from .record import EPISODE, START, VALID, Field
from .windows import Int64s

# Windows this large are copied one by one. Smaller ones that have a record each are taken with it, in blocks that stay
# in the second-level cache, since `take` into given memory is the fastest copy of scattered rows that NumPy has.
_LARGE_WINDOW = 2**14
_BLOCK_BYTES = 2**18


def columns_of(
    manifest: Manifest, features: Sequence[str] | None = None, provenance: bool = False
) -> tuple[Feature, ...]:
    """What a window is read as: its features, `valid` where it may be padded, `episode` and `start` if asked for.

    `features` picks, in this order; all if None. Errors: OptionError for what is no feature.
    """
    known = {feature.name: feature for feature in manifest.features}
    listed = isinstance(features, Sequence) and all(isinstance(name, str) for name in features)
    names = list(known) if features is None else list(features) if listed and not isinstance(features, str) else []
    if not names or len(set(names)) < len(names) or not known.keys() >= set(names):
        raise OptionError(f"features must be some of {', '.join(known)}, each once, not {features!r}")
    padded = (VALID,) if manifest.window.tail == "pad" else ()
    return (*(known[name] for name in names), *padded, *((EPISODE, START) if provenance else ()))


class Gatherer:
    """Copies windows of pieces of shards, wherever they lie, into arrays. Safe to call from several threads.

    `records(i)` gives the records of piece i, as made by `Records.of`; it decides what is kept.
    """

    def __init__(self, manifest: Manifest, columns: Sequence[Feature], records: "Callable[[int], Records]") -> None:
        self._layout, self._columns, self._records = manifest.layout, columns, records
        self._fields = [manifest.layout.field(column.name) for column in columns]
        self._shared = manifest.window.per_record > 1
        self._large = [not self._shared and field.nbytes >= _LARGE_WINDOW for field in self._fields]
        self._local = threading.local()
        self._block = max(1, _BLOCK_BYTES // self._layout.record_bytes)
        self._whole = 2 * sum(column.nbytes for column in columns) >= self._layout.record_bytes < _LARGE_WINDOW

    def gather(self, pieces: Int64s, rows: Int64s, outs: Sequence[np.ndarray]) -> None:
        """outs[c][j] = column c of window rows[j] of piece pieces[j]; outs[c] is a contiguous (n, *shape of c)."""
        for field, out, large in zip(self._fields, outs, self._large, strict=True):
            if large:
                self._copy_large(field, pieces, rows, out)
        if all(self._large):
            return
        narrow = np.min_scalar_type(int(pieces.max()))  # NumPy sorts 8 and 16 bits several times faster than 64
        order = np.argsort(pieces.astype(narrow), kind="stable")
        copy: Any = self._copy_shared if self._shared else self._copy_blocks if self._whole else self._copy_fields
        ends = np.flatnonzero(np.diff(pieces[order], append=-1)) + 1
        begin = 0
        for end in ends.tolist():
            chosen = order[begin:end]
            copy(self._records(int(pieces[chosen[0]])), rows[chosen], chosen, outs)
            begin = end

    def _copy_large(self, field: Field, pieces: Int64s, rows: Int64s, out: np.ndarray) -> None:
        data = {
            i: self._records(i).raw[:, field.offset : field.offset + field.nbytes] for i in np.unique(pieces).tolist()
        }
        for target, i, row in zip(_bytes(out), pieces.tolist(), rows.tolist(), strict=True):
            target[:] = data[i][row]

    def _copy_fields(self, piece: "Records", rows: Int64s, places: Int64s, outs: Sequence[np.ndarray]) -> None:
        for field, out, large in zip(self._fields, outs, self._large, strict=True):
            if not large:
                out[places] = field.of(piece.raw[:, field.offset : field.offset + field.nbytes][rows])

    def _copy_blocks(self, piece: "Records", rows: Int64s, places: Int64s, outs: Sequence[np.ndarray]) -> None:
        room = getattr(self._local, "room", None)
        if room is None:
            room = self._local.room = np.empty((self._block, self._layout.record_bytes), np.uint8)
        targets = [
            out if field.encoding == "varint" else _bytes(out) for field, out in zip(self._fields, outs, strict=True)
        ]
        for at in range(0, len(rows), self._block):
            some = rows[at : at + self._block]
            taken = room[: len(some)]
            piece.raw.take(some, axis=0, out=taken, mode="clip")  # in bounds; "raise" would copy through a buffer
            for field, target in zip(self._fields, targets, strict=True):
                raw = taken[:, field.offset : field.offset + field.nbytes]
                target[places[at : at + self._block]] = field.of(raw) if field.encoding == "varint" else raw

    def _copy_shared(self, piece: "_SharedRecords", rows: Int64s, places: Int64s, outs: Sequence[np.ndarray]) -> None:
        records, offsets = piece.find(rows)
        for column, field, out in zip(self._columns, self._fields, outs, strict=True):
            if column.shape == ():
                out[places] = piece.numbers(column, records, offsets)
            elif column.nbytes < _LARGE_WINDOW:
                out[places] = piece.windows(field, column)[records, offsets]
            else:
                windows = piece.windows(field, column)
                for place, record, offset in zip(places.tolist(), records.tolist(), offsets.tolist(), strict=True):
                    out[place] = windows[record, offset]


class Records:
    """The records of a piece: `raw` is a (records, record_bytes) uint8 array that nobody writes to."""

    def __init__(self, manifest: Manifest, piece: Piece, raw: NDArray[np.uint8]) -> None:
        self._layout, self._spec = manifest.layout, manifest.window
        self.piece, self.raw = piece, raw

    @staticmethod
    def of(manifest: Manifest, piece: Piece, raw: NDArray[np.uint8]) -> "Records":
        """Records that hold one window or several, as the manifest has it."""
        return (Records if manifest.window.per_record == 1 else _SharedRecords)(manifest, piece, raw)


class _SharedRecords(Records):
    """Records that hold several windows each."""

    def __init__(self, manifest: Manifest, piece: Piece, raw: NDArray[np.uint8]) -> None:
        super().__init__(manifest, piece, raw)
        self._integers: dict[str, Int64s] = {}
        count, valid = self._integer("count"), self._integer("valid")
        self._ends = np.cumsum(count)
        possible = (count > 0) & (valid > 0) & (valid <= self._spec.record_steps)
        possible &= count <= np.minimum(self._spec.count(valid), self._spec.per_record)
        if self._ends[-1] != piece.windows or not possible.all():
            raise ShardError(
                f"shard {piece.file} is damaged: it does not hold {piece.windows} windows as the manifest has"
                " them; copy or build the dataset again"
            )

    def find(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """(record, first step in it) of each window."""
        records = np.searchsorted(self._ends, rows, side="right")
        index = rows - (self._ends - self._integer("count"))[records]
        return records, self._spec.start(index, self._integer("valid")[records])

    def numbers(self, column: Feature, records: Int64s, offsets: Int64s) -> np.ndarray:
        """What windows at these places have as one number of theirs."""
        if column == VALID:
            return self._spec.real(self._integer("valid")[records] - offsets)
        field = self._layout.field(column.name)
        if field.encoding == "varint":
            return self._integer(column.name)[records] + (offsets if column == START else 0)
        return field.values(self.raw)[records]

    def windows(self, field: Field, column: Feature) -> np.ndarray:
        """Every window that could be cut from the records: a view (records, first step, length, ...)."""
        feature, nbytes = field.feature, self._layout.record_bytes
        step_bytes = field.nbytes // feature.shape[0]
        inner = [prod(feature.shape[i:]) * feature.numpy_dtype.itemsize for i in range(2, len(feature.shape) + 1)]
        return np.ndarray(
            (len(self.raw), feature.shape[0] - self._spec.extent + 1, *column.shape),
            feature.numpy_dtype,
            self.raw,
            field.offset,
            (nbytes, step_bytes, self._spec.stride * step_bytes, *inner),
        )

    def _integer(self, name: str) -> Int64s:
        if name not in self._integers:
            self._integers[name] = self._layout.field(name).values(self.raw)
        return self._integers[name]


def _bytes(out: np.ndarray) -> NDArray[np.uint8]:
    return out.view(np.uint8).reshape(len(out), -1) if out.ndim > 1 else out.reshape(-1, 1).view(np.uint8)
