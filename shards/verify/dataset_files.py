"""What the small files of a dataset say, against one another: the manifest, episodes.csv, the files for TFDS."""

import os
from collections.abc import Iterable, Sequence

import numpy as np

from ..episode_table import EpisodeRow, find_leaks
from ..manifest import Manifest
from ..manifest_file import fingerprint_of
from ..naming import EPISODES, MANIFEST, STAGING
from ..remote import FSSPEC, Place, file_in, is_url, read_small, why
from ..tfds import tfds_files
from .record_faults import LISTED
from .sections import wrong_rows

_MOST_OTHER = 2**28  # bytes that are read of what is not as it should be


def listed(what: str, places: Iterable[str]) -> list[str]:
    """A fault for each of the first places, and one that tells how many more there are."""
    faults = [what + place for place in places]
    more = len(faults) - LISTED
    return faults if more <= 0 else [*faults[:LISTED], f"{what.rstrip()} {more} more"]


def wrong_files(folder: Place, manifest: Manifest) -> list[str]:
    """A fault for each file for TFDS that is not what the manifest gives, and each that passes for a shard."""
    told = ((name, _differs(file_in(folder, name), expected)) for name, expected in tfds_files(manifest).items())
    faults = [f"{name} {how}" for name, how in told if how]
    shards = {shard.file for split in manifest.splits for shard in split.shards}
    alike = (name for name in _names(folder) if name.startswith(f"{manifest.name}-") and ".tfrecord" in name)
    stray = sorted(set(alike) - shards)
    return faults + [f"{name} passes for a shard of this dataset, but is none" for name in stray]


def _names(folder: Place) -> Iterable[str]:
    """The names of what is in a folder."""
    return FSSPEC.listed(str(folder)) if is_url(folder) else os.listdir(folder)


def _differs(file: Place, expected: bytes) -> str:
    try:
        same = read_small(file, max(len(expected), _MOST_OTHER)) == expected
        return "" if same else f"is not what {MANIFEST} gives"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {why(error)}"


def unfinished_build(folder: Place) -> list[str]:
    """A note if a build is under way in the folder, or was left."""
    there = STAGING in FSSPEC.folders(str(folder)) if is_url(folder) else os.path.exists(file_in(folder, STAGING))
    return [f"{STAGING} is there: a build is under way or was interrupted; the dataset is the one before"] * there


def wrong_episodes(manifest: Manifest, rows: Sequence[EpisodeRow]) -> list[str]:
    """What is wrong with episodes.csv by itself, and beside the manifest."""
    splitting, names = manifest.splitting, {split.name for split in manifest.splits}
    used = [row for row in rows if row.split]
    faults = find_leaks(rows, splitting.purge)
    faults += listed(f"{EPISODES} is out of order at ", _out_of_order(rows))
    faults += listed(f"{EPISODES} names a split that is none, for ", (r.path for r in used if r.split not in names))
    left_out = (row.path for row in rows if bool(row.split) == bool(row.left_out))
    faults += listed(f"{EPISODES} gives neither a split nor why it is left out, or both, to ", left_out)
    if splitting.group_by is not None:
        faults += listed(f"{EPISODES} gives no group to ", (row.path for row in used if not row.group))
    for split in manifest.splits:
        held = [row for row in used if row.split == split.name]
        if (len(held), sum(row.windows for row in held)) != (split.episodes, split.windows):
            faults.append(f"{EPISODES} gives {split.name} other episodes or windows than {MANIFEST}")
        faults += listed(
            f"{EPISODES} does not give {split.name} the windows that its steps have, of ",
            wrong_rows(held, manifest.window),
        )
    return faults


def _out_of_order(rows: Sequence[EpisodeRow]) -> Iterable[str]:
    """The paths of rows that do not follow on the one before, by path and begin, with the next number."""
    before = EpisodeRow(-1, "", 0, "", 0, 0, 0, "", "")
    for row in rows:
        same = row.path == before.path and row.episode == before.episode and row.begin >= before.begin
        follows = (row.path > before.path or before.episode < 0) and row.episode == before.episode + 1
        if not (same or follows):
            yield row.path
        before = row


def wrong_source(manifest: Manifest, rows: Sequence[EpisodeRow]) -> list[str]:
    """Where the manifest counts otherwise than a sound episodes.csv, and whether its fingerprint is off."""
    used = {row.episode: row.steps for row in rows if row.split}
    sections = np.array([row.end - row.begin for row in rows if row.split], np.int64)
    steps = sum(used.values())
    along = [feature for feature in manifest.features if feature.shape]
    source = manifest.source
    pairs = {
        "source.episodes": (source.episodes, len(used)),
        "source.steps": (source.steps, steps),
        "source.bytes": (source.bytes, steps * sum(each.nbytes // each.shape[0] for each in along)),
        "source.short + skipped": (source.short + source.skipped, len({row.episode for row in rows} - set(used))),
        "source.uncovered": (source.uncovered, steps - sum(manifest.window.covered(sections).tolist())),
    }
    faults = [f"{MANIFEST} has {a} as {key}, where {EPISODES} gives {b}" for key, (a, b) in pairs.items() if a != b]
    if len(along) == len(manifest.features) and manifest.fingerprint != fingerprint_of(manifest):
        faults.append(f"{MANIFEST} has been changed: its fingerprint is another")
    return faults
