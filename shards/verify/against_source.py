"""The records of one shard against the episode files that they were cut from, bit for bit.

A shard's records are permuted; here they are taken by episode and start, so that each episode's steps are read once and
a run of records is compared with a single strided view of them.
"""

from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..features import Feature
from ..record import Field
from ..remote import file_in, open_file, why
from ..windows import Int64s
from .check_shard import BLOCK_BYTES, Advance, Job, ShardCheck, Task, read_fully
from .record_faults import LISTED, Wrong
from .sections import Sections
from .source_file import SourceError, SourceFile, is_below

_HELD_BYTES = 2**28  # a shard of this size is held in memory; of a larger one, records are read one by one


@dataclass
class Comparison:
    """What comparing a shard with the source has found.

    `unusable` are the episodes whose files could not be compared, `why` in words for the first of them. `compared` and
    `lacking` are features that some source files have, and features that some have not: {name: such an episode}.
    """

    wrong: list[Wrong] = field(default_factory=list)
    unusable: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    why: dict[int, str] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, int] = field(default_factory=dict)


def compare_shard(job: Job, task: Task, check: ShardCheck, advance: Advance) -> Comparison:
    """Compare the records of a shard that its check knows the numbers of. Memory: _HELD_BYTES, or blocks of both."""
    found, sections = Comparison(), job.sections[task.split]
    order = np.argsort(check.numbers, kind="stable")
    order = order[np.searchsorted(check.numbers[order], 0) :]  # those that are -1 come first
    if sections is None or not len(order):
        return found
    comparing = _Comparing(job, sections, found)
    numbers = check.numbers[order]
    places = sections.locate(numbers)[0]
    ends = np.flatnonzero(np.diff(places, append=-1)) + 1
    try:
        with open_file(f"{job.folder}/{check.shard.file}") as opened:
            reader = _Records(opened, job.manifest.layout.record_bytes, len(check.numbers))
            begin = 0
            for end in ends.tolist():
                comparing.episode(int(places[begin]), numbers[begin:end], order[begin:end], reader, advance)
                begin = end
    except OSError as error:
        check.faults.append(f"{check.shard.file} cannot be read again: {why(error)}")
    except MemoryError:
        check.faults.append(f"{check.shard.file} cannot be compared: there is too little memory; try fewer --workers")
    comparing.finish()
    return found


class _Records:
    """Records of an open shard by their rows."""

    def __init__(self, opened: BinaryIO, record_bytes: int, records: int) -> None:
        self._opened, self._record_bytes = opened, record_bytes
        self._held: NDArray[np.uint8] | None = None
        if records * record_bytes <= _HELD_BYTES:
            self._held = np.empty((records, record_bytes), np.uint8)
            self._read(self._held.reshape(-1), 0)

    def rows(self, rows: Int64s) -> NDArray[np.uint8]:
        """The (n, record_bytes) records of these rows."""
        if self._held is not None:
            return self._held[rows]
        records = np.empty((len(rows), self._record_bytes), np.uint8)
        for record, row in zip(records, rows.tolist(), strict=True):
            self._read(record, row * self._record_bytes)
        return records

    def _read(self, into: NDArray[np.uint8], offset: int) -> None:
        self._opened.seek(offset)
        if read_fully(self._opened, into.data) < len(into):
            raise OSError(0, "it ended while it was read")


class _Comparing:
    """Compares the records of a split with the files of its episodes, one episode after the other."""

    def __init__(self, job: Job, sections: Sections, found: Comparison) -> None:
        assert job.root is not None
        self._root, self._paths, self._layout = job.root, job.paths, job.manifest.layout
        self._sections, self._window, self._found = sections, job.manifest.window, found
        self._fields = [job.manifest.layout.field(each.name) for each in job.manifest.features]
        self._unusable: list[int] = []
        self._wrong: dict[str, Wrong] = {}

    def episode(self, place: int, numbers: Int64s, rows: Int64s, records: _Records, advance: Advance) -> None:
        """Compare records of one section: these numbers, ascending, in these rows of the shard."""
        number = int(self._sections.episode[place])
        path = self._paths[number]
        try:
            if not is_below(path):
                raise SourceError("is no path below the source's folder, and is not opened")
            source = SourceFile(file_in(self._root, path), int(self._sections.total[place]))
            try:
                fields = self._present(number, source)
                for begin, end in self._runs(place, numbers):
                    chosen = records.rows(rows[begin:end])
                    for each in fields:
                        where = self._differ(source, each, place, numbers[begin:end], chosen)
                        self._tell(each.feature, where, numbers[begin:end], rows[begin:end])
                    advance(chosen.nbytes)
            finally:
                source.close()
        except SourceError as error:
            self._unusable.append(number)
            if len(self._found.why) < LISTED:  # places ascend, and with them episodes
                self._found.why[number] = str(error)

    def _present(self, number: int, source: SourceFile) -> list[Field]:
        """The fields that the source has; labels come from elsewhere, and are values of the episode."""
        present = []
        for each in self._fields:
            name = each.feature.name
            if name in source.names:
                present.append(each)
                self._found.compared.setdefault(name, number)
            elif each.feature.shape:
                raise SourceError(f"lacks {name}")
            else:
                self._found.lacking.setdefault(name, number)
        return present

    def _runs(self, place: int, numbers: Int64s) -> list[tuple[int, int]]:
        """[begin, end) of runs of records that start equally far apart, and few enough for a block's memory."""
        window, steps = self._window, self._sections.steps[place]
        hop = window.shift * window.per_record
        start = window.start(self._sections.locate(numbers)[1], steps)
        step_bytes = sum(each.nbytes // each.feature.shape[0] for each in self._fields if each.feature.shape)
        most = max(1, BLOCK_BYTES // max(self._layout.record_bytes, hop * step_bytes))
        cuts = np.flatnonzero(np.diff(start, prepend=start[0]) != hop).tolist()
        runs = []
        for begin, end in zip(cuts, [*cuts[1:], len(numbers)], strict=True):
            runs += [(at, min(at + most, end)) for at in range(begin, end, most)]
        return runs

    def _differ(
        self, source: SourceFile, each: Field, place: int, numbers: Int64s, records: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Which records of a run hold other bits than the source."""
        feature = each.feature
        if not feature.shape:
            value = source.value(feature)
            values = np.ascontiguousarray(each.values(records))
            differs: NDArray[np.bool_] = values.view(np.uint8).reshape(len(records), -1) != value.reshape(1).view(
                np.uint8
            )
            return np.asarray(differs.any(axis=1))
        window, steps, begin = self._window, int(self._sections.steps[place]), int(self._sections.begin[place])
        turn = self._sections.locate(numbers)[1]
        start = window.start(turn, steps)
        stored, apart = window.record_steps, window.stride if window.per_record == 1 else 1
        if window.per_record == 1:
            end = min(int(start[-1]) + window.extent, steps)
        else:  # what a record stores ends where its last window does
            end = int(start[-1]) + int(window.record(turn[-1:], steps)[1][0])
        found = source.steps(feature, begin + int(start[0]), begin + end)
        word = np.dtype(f"<u{min(4, feature.numpy_dtype.itemsize)}")  # arrays lie at multiples of 4
        flat = found.reshape(len(found), -1).view(word)
        lacking = int(start[-1] - start[0]) + (stored - 1) * apart + 1 - len(flat)
        if lacking > 0:
            flat = np.concatenate([flat, np.zeros((lacking, flat.shape[1]), word)])
        step, value_bytes = flat.strides
        hop = window.shift * window.per_record * step
        shape = (len(records), stored, flat.shape[1])
        expected = as_strided(flat, shape, (hop, apart * step, value_bytes), writeable=False)
        held = records[:, each.offset : each.offset + each.nbytes].view(word).reshape(shape)
        return np.asarray((held != expected).reshape(len(records), -1).any(axis=1))

    def _tell(self, feature: Feature, where: NDArray[np.bool_], numbers: Int64s, rows: Int64s) -> None:
        if where.any():
            what = f"has other values of {feature.name} than the source"
            wrong = Wrong.of(what, rows[where], *self._sections.origins(numbers[where]))
            known = self._wrong.get(feature.name)
            self._wrong[feature.name] = wrong if known is None else known.plus(wrong)

    def finish(self) -> None:
        """Fill in what is known at the end."""
        self._found.wrong = list(self._wrong.values())
        self._found.unusable = np.array(self._unusable, np.int64)
