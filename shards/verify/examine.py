"""Proof that a dataset is what its manifest says, and that its splits share nothing: `python -m shards verify`.

Not checked is what a dataset alone cannot tell: the order of its records, and, where episodes have values of their own,
such as labels, the seed, the fractions asked for and the fingerprint. The mean and the standard deviation that the
manifest has may differ by a 10**-9th, since sums depend on their order. Where records hold several windows whose steps
are apart, or that begin further apart than they are long, statistics and non-finite values are not counted again.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from ..episode_table import EpisodeRow, read_episodes
from ..errors import ManifestError, OptionError
from ..manifest import Manifest, Split
from ..manifest_file import load_manifest
from ..remote import Place, is_url, place_of, states_of
from .check_shard import Job, Task
from .dataset_files import unfinished_build, wrong_episodes, wrong_files, wrong_source
from .findings import Measures, SourceFindings, SplitFindings
from .measured_records import can_measure
from .sections import Sections, wrong_rows
from .side_by_side import Run, Watch, in_threads

_MOST_WINDOWS = 2**62


@dataclass(frozen=True)
class Findings:
    """The faults of a dataset, and notes of what is no fault, in words."""

    manifest: Manifest
    faults: tuple[str, ...]
    notes: tuple[str, ...]


def verify(path: Place, source: Place | None = None) -> list[str]:
    """Every fault of the dataset in the folder `path`, in words; none if it is whole.

    Checked are: the files for TFDS, and the manifest's counts, against episodes.csv; that no other file passes for a
    shard; the size and SHA-256 of each shard; framing, both checksums and the layout of each record; that padding is
    zeros, bools are bools and classes are classes; that every window that the episodes of a split have is in one record
    of the split, once; that no step of an episode, and no group of episodes, is in two splits; statistics and
    non-finite values. With `source`, the folder that the paths in episodes.csv are below, that every window has the
    bits of its episode's file, as the stored dtype has them. An episode is known by its path.
    Memory: that of episodes.csv, a byte a record, and for each core a block of some MB and ten bytes for each record of
    a shard; with `source` 256 MB or less, or an array of an archive or in Fortran order, more for each core.
    Errors: those of `load_manifest`; OptionError for a source that is no folder.
    """
    return list(examine(path, source).faults)


def examine(
    path: Place, source: Place | None = None, run: Run = in_threads, watch: Watch = lambda done: None
) -> Findings:
    """The same with notes; `run` checks the shards, and tells `watch` of the bytes it has read."""
    folder = place_of(path)
    manifest = load_manifest(folder)
    if source is not None and not is_url(source) and not os.path.isdir(source):
        raise OptionError(f"no source at {str(source)!r}: give the folder that the paths in episodes.csv are below")
    faults = wrong_files(folder, manifest)
    rows: list[EpisodeRow] = []
    try:
        rows = read_episodes(folder, manifest)
        wrong = wrong_episodes(manifest, rows)
        faults += wrong or wrong_source(manifest, rows)
    except ManifestError as error:
        faults.append(str(error))
    sections = _sections(manifest, rows)
    paths = {row.episode: row.path for row in rows}
    job = Job(str(folder), manifest, sections, None if source is None else str(source), paths if source else {})
    notes = unfinished_build(folder)
    measures, compared = Measures(manifest), SourceFindings(paths)
    tasks = [[Task(i, j) for j in range(len(split.shards))] for i, split in enumerate(manifest.splits)]
    whole = {}
    with closing(run(job, [task for part in tasks for task in part], watch)) as results:
        for split, known, part in zip(manifest.splits, sections, tasks, strict=True):
            there = _bytes_there(folder, split) // manifest.layout.record_bytes
            found = SplitFindings(split, known, paths, there)
            for check, comparison in islice(results, len(part)):
                faults += found.add(check, [] if comparison is None else comparison.wrong)
                measures.add(check)
                if comparison is not None:
                    compared.add(comparison)
            faults += found.end()
            whole[split.name] = found.whole
    if not can_measure(manifest.window):
        notes.append("statistics and non-finite values are not counted again: records hold windows of steps apart")
    else:
        faults += measures.wrong_statistics() if whole[manifest.training_split] else []
        faults += measures.wrong_nonfinite() if all(whole.values()) else []
    return Findings(manifest, (*faults, *compared.faults()), (*notes, *compared.notes()))


def _sections(manifest: Manifest, rows: Sequence[EpisodeRow]) -> tuple[Sections | None, ...]:
    """The sections of each split; None where they are not sound."""
    found: list[Sections | None] = []
    for split in manifest.splits:
        held = [row for row in rows if row.split == split.name]
        sound = held and not wrong_rows(held, manifest.window) and sum(row.windows for row in held) < _MOST_WINDOWS
        found.append(Sections(manifest.window, held) if sound else None)
    return tuple(found)


def _bytes_there(folder: Place, split: Split) -> int:
    try:
        states = states_of(folder, [shard.file for shard in split.shards])
    except OSError:  # which is told when shards are read
        return 0
    return sum(min(max(states[shard.file].size, 0), shard.bytes) for shard in split.shards if shard.file in states)


def shards_bytes(folder: Place, manifest: Manifest) -> int:
    """The bytes of all shards that are there."""
    return sum(_bytes_there(folder, split) for split in manifest.splits)
