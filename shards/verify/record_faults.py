"""What can be wrong within records, looked for in many at once: layout, padding and values that no build writes."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..record import RecordLayout
from ..windows import Int64s

LISTED = 10  # faults of one kind and shard that are named

_Bools = NDArray[np.bool_]
_SCRATCH = 2**20  # bytes of stored steps that are compared with zero in one go


class Wrong(NamedTuple):
    """One kind of fault of a shard: `what`, in `total` records; of the first of them, row and (episode, start).

    The episode is -1 where the record does not tell which it is.
    """

    what: str
    records: tuple[int, ...]
    origins: tuple[tuple[int, int], ...]
    total: int

    @classmethod
    def of(cls, what: str, rows: Int64s, episode: Int64s, start: Int64s) -> "Wrong":
        """Faults of these rows, whose records begin at these steps."""
        origins = zip(episode[:LISTED].tolist(), start[:LISTED].tolist(), strict=True)
        return cls(what, tuple(rows[:LISTED].tolist()), tuple(origins), len(rows))

    def plus(self, other: "Wrong") -> "Wrong":
        """Add later faults of the same kind."""
        records, origins = self.records + other.records, self.origins + other.origins
        return Wrong(self.what, records[:LISTED], origins[:LISTED], self.total + other.total)


class Words:
    """The bytes that are the same in all records, with the bits that say how long a varint is, eight at a time.

    A word costs a few nanoseconds a record; comparing byte by byte would take as long as the checksums.
    """

    def __init__(self, layout: RecordLayout) -> None:
        runs: list[tuple[int, bytearray, bytearray]] = []  # (offset, which bits are fixed, what they are)
        parts = [(offset, b"\xff" * len(part), part) for offset, part in layout.constant]
        for field in layout.fields:
            if field.encoding == "varint":
                more = field.nbytes - 1
                last = b"\xfe" if field.nbytes == 10 else b"\x80"  # ten groups of seven bits are six too many
                parts.append((field.offset, b"\x80" * more + last, b"\x80" * more + b"\0"))
        for offset, mask, value in sorted(parts):
            if not runs or runs[-1][0] + len(runs[-1][1]) != offset:
                runs.append((offset, bytearray(), bytearray()))
            runs[-1][1].extend(mask)
            runs[-1][2].extend(value)
        self._words = [
            (offset + at, int.from_bytes(mask[at : at + 8], "little"), int.from_bytes(value[at : at + 8], "little"))
            for offset, mask, value in runs
            for at in [*range(0, len(mask) - 8, 8), len(mask) - 8]  # every run has eight bytes or more
        ]

    def differ(self, records: NDArray[np.uint8]) -> _Bools:
        """Which of (n, record_bytes) contiguous records are laid out otherwise."""
        different = np.zeros(len(records), np.bool_)
        for offset, mask, value in self._words:
            word = np.ndarray((len(records),), "<u8", records.data, offset, (records.shape[1],))
            different |= (word & np.uint64(mask)) != np.uint64(value)
        return different


def wrong_values(
    layout: RecordLayout, records: NDArray[np.uint8], valid: Int64s | None
) -> Iterator[tuple[str, _Bools]]:
    """(what is wrong, in which of the records), of values that no build writes.

    `valid` are the real ones of the stored steps of each record, where there may be fewer than all.
    """
    for field in layout.fields:
        feature = field.feature
        raw = records[:, field.offset : field.offset + field.nbytes]
        if feature.dtype == "bool":
            yield f"has {feature.name} that is neither 0 nor 1", np.asarray((raw > 1).any(axis=1))
        if feature.classes:
            values: Int64s = field.of(raw)
            yield f"has {feature.name} that is none of its classes", (values < 0) | (values >= len(feature.classes))
        if feature.shape and valid is not None:
            yield f"has {feature.name} that is not 0 where no step is real", _not_zero(raw, feature.shape[0], valid)


def _not_zero(raw: NDArray[np.uint8], stored: int, valid: Int64s) -> _Bools:
    """Which of (n, bytes) arrays of `stored` steps have anything in the steps [valid, stored)."""
    wrong = np.zeros(len(raw), np.bool_)
    padded = np.flatnonzero(valid < stored)
    rows = max(1, _SCRATCH // raw.shape[1])
    for at in range(0, len(padded), rows):
        chosen = padded[at : at + rows]
        filled = raw[chosen].reshape(len(chosen), stored, -1).any(axis=2)
        wrong[chosen] = (filled & (np.arange(stored) >= valid[chosen, np.newaxis])).any(axis=1)
    return wrong
