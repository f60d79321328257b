"""Windows copied from records in memory into arrays: what reading spends its time on.

Rows of a piece are its windows, numbered through its records. Where a record holds several windows, they are cut from
its steps here, as late as can be.
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import OptionError, ShardError
from .features import Feature
from .manifest import Manifest
from .pieces import Piece
from .record import COUNT, EPISODE, START, VALID, decode_varints
from .windows import Int64s, WindowSpec

# Windows pass through the second-level cache in blocks. `take` into memory that is there is the fastest copy of
# scattered rows that NumPy has, and other threads run meanwhile; all else makes memory anew, of which TensorFlow has
# 128 KiB and more mapped each time.
_TAKEN_BYTES = 2**18
_BLOCK_BYTES = 2**16


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


class Cut:
    """Where one column of a window lies from its record's begin, and how it is copied.

    offset: of its first byte, if it is that of the record's first step. nbytes: from the first byte to the last, those
    between the steps of a window included. packed: whether it has no others.
    """

    def __init__(self, manifest: Manifest, column: Feature) -> None:
        spec, field = manifest.window, manifest.layout.field(column.name)
        self._column, self._spec, self._varint = column, spec, field.encoding == "varint"
        self.offset, self.nbytes, self._step = field.offset, field.nbytes, 0
        if spec.per_record > 1 and column.shape:
            self._step = field.nbytes // field.feature.shape[0]
            self.nbytes = spec.extent * self._step
        self.packed = not self._varint and self.nbytes == column.nbytes
        # Bytes that are copied as one value are copied fastest.
        self._shape = () if self.packed or self._varint else (spec.length,)
        self._dtype = np.dtype((np.void, self._step if self._shape else self.nbytes))
        self._strides = (spec.stride * self._step,) if self._shape else ()

    def begins(self, records: Int64s, first_steps: Int64s | None) -> Int64s:
        """The first bytes of windows whose records begin at these bytes; first_steps: theirs in shared records."""
        begins = records + self.offset
        return begins if first_steps is None or not self._step else begins + first_steps * self._step

    def put(self, records: NDArray[np.uint8], places: Int64s, out: np.ndarray) -> None:
        """out[places[j]] = the window that record j, of (n, record_bytes), holds alone; `out` is as in `copy`."""
        raw = records[:, self.offset : self.offset + self.nbytes]
        if self._varint:
            out[places] = decode_varints(raw)
        else:
            out.reshape(-1).view(np.uint8).reshape(len(out), -1)[places] = raw

    def copy(
        self,
        memory: NDArray[np.uint8],
        begins: Int64s,
        first_steps: Int64s | None,
        places: Int64s,
        out: np.ndarray,
    ) -> None:
        """out[places[j]] = the window that begins at byte begins[j] of `memory`; `out` is a contiguous (n, *shape)."""
        every: np.ndarray = np.ndarray(  # whatever could begin at each byte
            (len(memory) - self.nbytes + 1, *self._shape), self._dtype, memory, 0, (1, *self._strides)
        )
        if self._varint:
            values = decode_varints(every[begins].view(np.uint8).reshape(-1, self.nbytes))
            out[places] = values if first_steps is None else self._of_window(values, first_steps)
            return
        target = out.reshape(-1).view(self._dtype).reshape(-1, *self._shape)
        some = max(1, _BLOCK_BYTES // self._column.nbytes)
        for at in range(0, len(begins), some):
            target[places[at : at + some]] = every[begins[at : at + some]]

    def _of_window(self, values: Int64s, first_steps: Int64s) -> Int64s:
        """The integer of a window, from that of its shared record."""
        if self._column == START:
            return values + first_steps
        return self._spec.real(values - first_steps) if self._column == VALID else values


class Index:
    """Which windows the records of a piece hold, several each, as their `count` and `valid` say. Errors: ShardError."""

    columns = (COUNT, VALID)

    def __init__(self, piece: Piece, spec: WindowSpec, count: Int64s, valid: Int64s) -> None:
        self._spec, self._valid = spec, valid
        self._ends = np.cumsum(count)
        self._firsts = self._ends - count
        possible = (count > 0) & (valid > 0) & (valid <= spec.record_steps)
        possible &= count <= np.minimum(spec.count(valid), spec.per_record)
        if self._ends[-1] != piece.windows or not possible.all():
            raise ShardError(
                f"shard {piece.file} is damaged: it does not hold {piece.windows} windows as the manifest has"
                " them; copy or build the dataset again"
            )

    def find(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """(record, first step in it) of each window."""
        records = np.searchsorted(self._ends, rows, side="right")
        return records, self._spec.start(rows - self._firsts[records], self._valid[records])


class Records:
    """The records of a piece in memory: `raw` is a (records, record_bytes) uint8 array that nobody writes to."""

    def __init__(self, manifest: Manifest, piece: Piece, raw: NDArray[np.uint8]) -> None:
        self.piece, self.raw = piece, raw
        self._index = None
        if manifest.window.per_record > 1:
            integers = (manifest.layout.field(column.name).values(raw) for column in Index.columns)
            self._index = Index(piece, manifest.window, *integers)

    def find(self, rows: Int64s) -> tuple[Int64s, Int64s | None]:
        """(record, first step in it) of each window; None where each has a record of its own."""
        return (rows, None) if self._index is None else self._index.find(rows)


class Gatherer:
    """Copies windows of pieces in memory into arrays. Safe to call from several threads."""

    def __init__(self, manifest: Manifest, columns: Sequence[Feature]) -> None:
        self._record_bytes = manifest.layout.record_bytes
        self._cuts = [Cut(manifest, column) for column in columns]
        self._taken = max(1, _TAKEN_BYTES // self._record_bytes)  # records at a time
        much = 2 * sum(cut.nbytes for cut in self._cuts) >= self._record_bytes
        self._whole = manifest.window.per_record == 1 and much
        self._local = threading.local()

    def gather(
        self, records: Callable[[int], Records], pieces: Int64s, rows: Int64s, outs: Sequence[np.ndarray]
    ) -> None:
        """outs[c][j] = column c of window rows[j] of piece pieces[j]; outs[c] is a contiguous (n, *shape of c).

        records(i) gives those of piece i.
        """
        narrow = np.min_scalar_type(int(pieces.max()))  # NumPy sorts 8 and 16 bits several times faster than 64
        order = np.argsort(pieces.astype(narrow), kind="stable")
        ends = np.flatnonzero(np.diff(pieces[order], append=-1)) + 1
        begin = 0
        for end in ends.tolist():
            places = order[begin:end]
            piece = records(int(pieces[places[0]]))
            if self._whole:
                self._take(piece.raw, rows[places], places, outs)
            else:
                self._copy(piece, rows[places], places, outs)
            begin = end

    def _copy(self, piece: Records, rows: Int64s, places: Int64s, outs: Sequence[np.ndarray]) -> None:
        found, first_steps = piece.find(rows)
        memory, found = piece.raw.reshape(-1), found * self._record_bytes
        for cut, out in zip(self._cuts, outs, strict=True):
            cut.copy(memory, cut.begins(found, first_steps), first_steps, places, out)

    def _take(self, raw: NDArray[np.uint8], rows: Int64s, places: Int64s, outs: Sequence[np.ndarray]) -> None:
        """Copy whole records, and the columns from there, of which they mostly consist."""
        room = getattr(self._local, "room", None)
        if room is None:
            room = self._local.room = np.empty((self._taken, self._record_bytes), np.uint8)
        for at in range(0, len(rows), self._taken):
            some = rows[at : at + self._taken]
            taken = room[: len(some)]
            raw.take(some, axis=0, out=taken, mode="clip")  # in bounds; "raise" would copy through a buffer
            for cut, out in zip(self._cuts, outs, strict=True):
                cut.put(taken, places[at : at + self._taken], out)
