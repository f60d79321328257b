"""Proof that a dataset is what its manifest says, and that its splits share nothing: `python -m shards verify`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import numpy as np

from .dataset import check_shard
from .episode_table import EpisodeRow, find_leaks, read_episodes
from .errors import ShardError
from .manifest import Manifest, Shard, Split
from .manifest_file import load_manifest
from .naming import EPISODES, MANIFEST
from .pieces import map_piece, whole_shards
from .record import INDEX
from .tfds import tfds_files
from .windows import Int64s, WindowSpec

_LISTED = 10  # faults of one kind and shard that are named


def verify(path: str | Path) -> list[str]:
    """Every fault of the dataset in the folder `path`, in words; none if it is whole.

    Checked are: the files for TFDS, against the manifest; the size and SHA-256 of each shard; framing and both
    checksums of each record; that every window that the episodes of a split have is in one record of the split, once;
    that no step of an episode, and no group of episodes, is in two splits. An episode is known by its path.
    Memory: ten bytes a record, and what episodes.csv has.
    Errors: those of `load_manifest`, and ManifestError for an episodes.csv that is not the manifest's.
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    rows = read_episodes(folder, manifest)
    faults = _wrong_files(folder, tfds_files(manifest)) + find_leaks(rows, manifest.splitting.purge)
    grouped = manifest.splitting.group_by is not None
    faults += _listed(
        f"{EPISODES} gives no group to ", (row.path for row in rows if grouped and row.split and not row.group)
    )
    for split in manifest.splits:
        faults += _verify_split(folder, manifest, split, [row for row in rows if row.split == split.name])
    known = {"", *(split.name for split in manifest.splits)}
    return faults + _listed(
        f"{EPISODES} names a split that is none, for ", (r.path for r in rows if r.split not in known)
    )


def _wrong_files(folder: Path, described: Mapping[str, bytes]) -> list[str]:
    """A fault for each file that is not what the manifest gives."""
    faults = []
    for name, expected in described.items():
        if not (folder / name).is_file():
            faults.append(f"{name} is missing")
        elif (folder / name).read_bytes() != expected:
            faults.append(f"{name} is not what {MANIFEST} gives")
    return faults


class _Sections:
    """What one split has of its episodes, as columns by episode; its records are numbered through these sections."""

    def __init__(self, window: WindowSpec, rows: Sequence[EpisodeRow]) -> None:
        self._window = window
        self.rows = sorted(rows)
        table = np.array([(row.episode, row.begin, row.end, row.windows) for row in self.rows], np.int64)
        self._episode, self._begin, end, self.windows = table.reshape(-1, 4).T
        self._steps = end - self._begin
        self._first = np.concatenate([[0], np.cumsum(window.records(self._steps))])

    @property
    def records(self) -> int:
        """How many records the split should have."""
        return int(self._first[-1])

    @property
    def consistent(self) -> bool:
        """Whether each section has the windows that its steps give, and no episode has two sections."""
        distinct = len(np.unique(self._episode)) == len(self.rows) > 0
        within = all(0 <= row.begin <= row.end <= row.steps for row in self.rows)
        return distinct and within and bool((self.windows == self._window.count(self._steps)).all())

    def find(self, index: Mapping[str, Int64s]) -> Int64s:
        """The number of each record with these `episode`, `start`, ... values; -1 where the split has none such."""
        window = self._window
        place = np.minimum(np.searchsorted(self._episode, index["episode"]), len(self.rows) - 1)
        start, steps, windows = index["start"] - self._begin[place], self._steps[place], self.windows[place]
        first = -(-start // window.shift)  # an aligned window starts before the multiple of `shift` that is its turn
        count, valid = window.record(first, steps)
        right = (self._episode[place] == index["episode"]) & (first >= 0) & (first < windows)
        right &= (first % window.per_record == 0) & (window.start(first, steps) == start)
        if "count" in index:
            right &= index["count"] == count
        if "valid" in index:
            right &= index["valid"] == valid
        return np.where(right, self._first[place] + first // window.per_record, -1)

    def name(self, number: int) -> str:
        """A record of the split in words."""
        place = int(np.searchsorted(self._first, number, side="right")) - 1
        first = (number - int(self._first[place])) * self._window.per_record
        start = int(self._begin[place]) + int(self._window.start(first, int(self._steps[place])))
        return f"the window of {self.rows[place].path} from step {start} on"


def _verify_split(folder: Path, manifest: Manifest, split: Split, rows: Sequence[EpisodeRow]) -> list[str]:
    sections = _Sections(manifest.window, rows)
    if not sections.consistent:
        return [f"{EPISODES} does not give {split.name} the windows that its steps have"]
    faults = []
    if (len(rows), int(sections.windows.sum())) != (split.episodes, split.windows):
        faults.append(f"{EPISODES} gives {split.name} other episodes or windows than {MANIFEST}")
    seen = np.zeros(sections.records, np.bool_)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # whatever takes long here lets other threads run
        for found, damage in pool.map(lambda shard: _verify_shard(folder, manifest, shard, sections), split.shards):
            faults += damage
            numbers, times = np.unique(found, return_counts=True)
            again = numbers[(times > 1) | seen[numbers]]
            faults += _listed(f"{split.name} has twice ", map(sections.name, again.tolist()))
            seen[numbers] = True
    return faults + _listed(f"{split.name} lacks ", map(sections.name, np.flatnonzero(~seen).tolist()))


def _verify_shard(folder: Path, manifest: Manifest, shard: Shard, sections: _Sections) -> tuple[Int64s, list[str]]:
    """(the number in the split of each record that belongs there, the faults of the shard)."""
    layout = manifest.layout
    try:
        check_shard(folder, shard)
        (piece,) = whole_shards(folder, [shard])
        records = map_piece(piece, layout.record_bytes)
    except ShardError as error:
        return np.empty(0, np.int64), [str(error)]
    damaged = layout.damaged(records)
    faults = _listed(f"{shard.file} is damaged in record ", map(str, damaged.tolist()))
    if sha256(records.data).hexdigest() != shard.sha256:
        faults.append(f"{shard.file} is not the file that {MANIFEST} describes: its SHA-256 is another")
    numbers = sections.find({name: layout.field(name).values(records) for name in INDEX if name in layout})
    numbers[damaged] = -2
    faults += _listed(
        f"{shard.file} has what its split does not, in record ", map(str, np.flatnonzero(numbers == -1).tolist())
    )
    return numbers[numbers >= 0], faults


def _listed(what: str, places: Iterable[str]) -> list[str]:
    """A fault for each place, but for many places one for all that come after the first ones."""
    faults = [what + place for place in places]
    more = len(faults) - _LISTED
    return faults if more <= 0 else [*faults[:_LISTED], f"{faults[_LISTED]} and {more - 1} more such faults"]
