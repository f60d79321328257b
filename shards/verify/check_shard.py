"""One shard read once, block by block, and each block hashed and checked while it is in the processor's cache.

Nothing is mapped: a file that is cut short while it is read is a fault to tell, where a map would end the process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..manifest import Manifest, Shard
from ..naming import MANIFEST
from ..record import INDEX
from ..remote import open_file, size_of, why
from ..windows import Int64s
from .measured_records import MeasuredRecords, Places, can_measure
from .record_faults import Words, Wrong, wrong_values
from .sections import Sections
from .sums import Sums

BLOCK_BYTES = 2**22  # some hundred operations take 1/20 of the time that it takes to hash a block

#: Called with how many bytes more are checked.
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """What every shard is checked by: the manifest, and of each split its sections, if they are known.

    `paths` are those of the episodes by number, below `root`, if the windows are to be compared with the source.
    """

    folder: str
    manifest: Manifest
    sections: tuple[Sections | None, ...]
    root: str | None
    paths: Mapping[int, str]


class Task(NamedTuple):
    """A shard, by the numbers of its split and of itself."""

    split: int
    shard: int


@dataclass
class ShardCheck:
    """What one shard is like: faults of the file, faults of records, and the number in the split of each record.

    The number of a record that does not belong there, or is damaged, is -1. `records` are those that the file holds.
    """

    shard: Shard
    faults: list[str] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    numbers: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    sums: dict[str, Sums] = field(default_factory=dict)
    nonfinite: Places = field(default_factory=dict)


def read_fully(opened: BinaryIO, view: memoryview) -> int:
    """Fill a view from where the file is; returns how many bytes there were, fewer only at the file's end."""
    at = 0
    while at < len(view) and (got := opened.readinto(view[at : at + BLOCK_BYTES])):  # type: ignore[attr-defined]
        at += got
    return at


def check_shard(job: Job, task: Task, advance: Advance) -> ShardCheck:
    """Check one shard against the manifest; trouble with the file is among the faults. Memory: a block."""
    shard = job.manifest.splits[task.split].shards[task.shard]
    check = ShardCheck(shard)
    try:
        with open_file(f"{job.folder}/{shard.file}") as opened:
            _check_file(job, task, opened, check, advance)
    except OSError as error:
        check.faults.append(f"{shard.file} cannot be read: {why(error)}")
    except MemoryError:
        check.faults.append(f"{shard.file} cannot be read: its records are larger than the memory that is free")
    return check


def _check_file(job: Job, task: Task, opened: BinaryIO, check: ShardCheck, advance: Advance) -> None:
    shard, record_bytes = check.shard, job.manifest.layout.record_bytes
    size = size_of(opened)
    if size != shard.bytes:
        check.faults.append(
            f"{shard.file} has {size} bytes where {MANIFEST} says {shard.bytes}: it was cut short or replaced"
        )
    end = min(size, shard.bytes)
    checker = _RecordChecker(job, task, end // record_bytes, check)
    rows = max(1, BLOCK_BYTES // record_bytes)
    block = np.empty(min(rows * record_bytes, end), np.uint8)
    digest, at = sha256(), 0
    while at < end:
        part = block[: end - at]
        got = read_fully(opened, part.data)
        if got < len(part):
            check.faults.append(f"{shard.file} ended at byte {at + got} while it was read, where it had {size}")
            break
        digest.update(part.data)
        whole = got // record_bytes
        checker.add(part[: whole * record_bytes].reshape(whole, record_bytes))
        at += got
        advance(got)
    if at == size == shard.bytes and digest.hexdigest() != shard.sha256:
        check.faults.append(f"{shard.file} is not the file that {MANIFEST} describes: its SHA-256 is another")
    checker.finish()


class _RecordChecker:
    """Takes the records of a shard block by block, and fills in what its check says of them."""

    def __init__(self, job: Job, task: Task, records: int, check: ShardCheck) -> None:
        manifest = job.manifest
        split = manifest.splits[task.split]
        self._layout, self._sections = manifest.layout, job.sections[task.split]
        self._words = Words(manifest.layout)
        self._index = [manifest.layout.field(name) for name in INDEX if name in manifest.layout]
        self._check, self._row, self._windows = check, 0, 0
        self._wrong: dict[str, Wrong] = {}
        self._measured = None
        if self._sections is not None and can_measure(manifest.window):
            self._measured = MeasuredRecords(manifest, self._sections, split.name == manifest.training_split)
        check.numbers = np.full(records, -1)

    def add(self, records: NDArray[np.uint8]) -> None:
        """Check the next records, (n, record_bytes) of them."""
        layout, sections = self._layout, self._sections
        if not len(records):
            return
        first, self._row = self._row, self._row + len(records)
        good = np.ones(len(records), np.bool_)
        good[layout.damaged(records)] = False
        index = {each.feature.name: each.values(records) for each in self._index}
        numbers = np.full(len(records), -1) if sections is None else sections.find(index)
        likely = np.where(numbers >= 0, index["episode"], -1)
        self._tell("is damaged", ~good, first, likely, index["start"])
        different = self._words.differ(records) & good
        self._tell(f"has another feature layout than {MANIFEST}", different, first, likely, index["start"])
        good &= ~different
        for what, where in wrong_values(layout, records, index.get("valid")):
            self._tell(what, where & good, first, index["episode"], index["start"])
        if sections is None:
            return
        self._tell("has what its split does not", good & (numbers < 0), first, index["episode"], index["start"])
        good &= numbers >= 0
        self._windows += int(index["count"][good].sum()) if "count" in index else int(good.sum())
        self._check.numbers[first : self._row] = np.where(good, numbers, -1)
        if self._measured is not None and good.any():
            whole = good.all()
            self._measured.add(records if whole else records[good], numbers if whole else numbers[good])

    def _tell(self, what: str, where: NDArray[np.bool_], first: int, episode: Int64s, start: Int64s) -> None:
        if where.any():
            rows = np.flatnonzero(where)
            wrong = Wrong.of(what, first + rows, episode[rows], start[rows])
            self._wrong[what] = self._wrong[what].plus(wrong) if what in self._wrong else wrong

    def finish(self) -> None:
        """Fill in what is known once all records are checked."""
        check, shard = self._check, self._check.shard
        check.wrong = list(self._wrong.values())
        whole = self._sections is not None and (check.numbers >= 0).all() and len(check.numbers) == shard.records
        if whole and self._windows != shard.windows:
            check.faults.append(f"{shard.file} holds {self._windows} windows where {MANIFEST} says {shard.windows}")
        if self._measured is not None:
            check.sums, check.nonfinite = self._measured.sums(), self._measured.nonfinite()
