"""`episodes.csv`: every episode file that was found, which of its steps each split has, and why it was left out."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from .errors import ManifestError, OptionError
from .manifest import Manifest
from .naming import EPISODES
from .remote import Place, RemoteFiles, file_in, read_small, why

_SPECIAL = re.compile('[",\r\n]')
_NUMBERS = re.compile("(?:(?:0|[1-9][0-9]{0,12}),){5}")  # as they are written; 13 digits hold any number of steps
_OUTSIDE = re.compile(r"/|(?:.*/)?\.\.(?:/.*)?\Z", re.DOTALL)
_LINES_AT_ONCE = 2**16  # as text of Python, which takes twice the memory of its bytes
_MAX_BYTES = 2**31  # of a file that is read or written: 20 million episodes


class EpisodeRow(NamedTuple):
    """A section of an episode: `split` has the steps [begin, end) of its `steps`, and `windows` windows of them.

    Of an episode that is left out there is one row, with an empty `split` and `left_out` saying why. `episode` is its
    number, `path` where it lies below the input root, `group` what it has in common with others, or empty.
    """

    episode: int
    path: str
    steps: int
    split: str
    begin: int
    end: int
    windows: int
    group: str
    left_out: str


def format_episodes(rows: Iterable[EpisodeRow]) -> bytes:
    """The bytes of episodes.csv. Errors: OptionError where they would be more than are read."""
    parts, lines = [], [",".join(EpisodeRow._fields) + "\n"]
    for episode, path, steps, split, begin, end, windows, group, left_out in rows:
        where = f"{steps},{split},{begin},{end},{windows}"
        lines.append(f"{episode},{_quoted(path)},{where},{_quoted(group)},{_quoted(left_out)}\n")
        if len(lines) == _LINES_AT_ONCE:
            parts.append("".join(lines).encode(errors="surrogateescape"))
            lines.clear()
    parts.append("".join(lines).encode(errors="surrogateescape"))
    if (size := sum(map(len, parts))) > _MAX_BYTES:
        raise OptionError(
            f"{EPISODES} would have {size} bytes, of which {_MAX_BYTES} at most are read: build several datasets, each"
            " of a part of the episodes"
        )
    return b"".join(parts)


def _quoted(text: str) -> str:
    """A field of a CSV file; csv.writer's rules for a carriage return differ between versions of Python."""
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def leads_out(path: str) -> bool:
    """Whether a path below a folder may lead out of it: one that is absolute, or has a part `..`.

    >>> leads_out("a/b..c.npy"), leads_out("a/../b.npy"), leads_out("/a.npy")
    (False, True, True)
    """
    return _OUTSIDE.match(path) is not None


def parse_episodes(data: bytes, file: str = EPISODES) -> Iterator[EpisodeRow]:
    """The inverse of `format_episodes`; ManifestError for what it cannot have made, such as a path out of the root."""
    if b"\0" in data:  # which not every version of Python's reader refuses
        raise ManifestError(f"{file} is damaged: it holds zero bytes; copy the dataset again")
    lines = csv.reader(io.StringIO(data.decode(errors="surrogateescape"), newline=""), strict=True)
    try:
        if tuple(next(lines, ())) != EpisodeRow._fields:
            raise ValueError(f"its header is not {','.join(EpisodeRow._fields)}")
        for episode, path, steps, split, begin, end, windows, group, left_out in lines:
            if not _NUMBERS.fullmatch(f"{episode},{steps},{begin},{end},{windows},"):
                raise ValueError("a number is not written as a whole number of 13 digits at most")
            if leads_out(path):
                raise ValueError(f"the path {path[:100]!r} leads out of the episodes' folder")
            yield EpisodeRow(int(episode), path, int(steps), split, int(begin), int(end), int(windows), group, left_out)
    except (ValueError, csv.Error) as error:
        raise ManifestError(f"{file} is damaged, near line {lines.line_num}: {error}; copy the dataset again") from None


def read_episodes(folder: Place, manifest: Manifest, remote: RemoteFiles | None = None) -> list[EpisodeRow]:
    """The rows of a dataset's episodes.csv; ManifestError unless it is the file that the manifest describes."""
    file = file_in(folder, EPISODES)
    try:
        data = read_small(file, _MAX_BYTES, remote)
    except OSError as error:
        raise ManifestError(f"{file} cannot be read: {why(error)}; copy the dataset again") from error
    if sha256(data).hexdigest() != manifest.episodes_sha256:
        raise ManifestError(f"{file} is not the file that the manifest describes; copy the dataset again")
    return list(parse_episodes(data, str(file)))


def episode_paths(rows: Sequence[EpisodeRow]) -> tuple[str, ...]:
    """The path of each episode, by its number; ManifestError where a number is left out."""
    paths = {row.episode: row.path for row in rows}
    if paths and max(paths) >= len(paths):
        raise ManifestError(f"{EPISODES} is damaged: it leaves out numbers of episodes; copy the dataset again")
    return tuple(paths[number] for number in range(len(paths)))


def find_leaks(rows: Sequence[EpisodeRow], purge: int = 0) -> list[str]:
    """What more than one split has: every step of an episode, and every group, that is not in a single one.

    An episode is what has one path. `purge` steps must lie between two sections of it.

    >>> row = EpisodeRow(0, "a.npy", 9, "train", 0, 6, 3, "", "")
    >>> find_leaks([row, row._replace(split="test", begin=5, end=9)])
    ['a.npy: steps [5, 6) are in train and test']
    """
    used = sorted((row for row in rows if row.split), key=lambda row: (row.path, row.begin, row.end))
    leaks = []
    last: EpisodeRow | None = None  # of the sections of this episode so far, the one that reaches furthest
    for row in used:
        if last is None or row.path != last.path:
            last = row
            continue
        if (row.episode, row.steps, row.group) != (last.episode, last.steps, last.group):
            leaks.append(f"{row.path}: two episodes or two groups have this path")
        if last.end <= row.begin < last.end + purge:
            leaks.append(f"{row.path}: less than {purge} steps lie between {last.split} and {row.split}")
        if row.begin < last.end:
            both = f"[{row.begin}, {min(row.end, last.end)})"
            leaks.append(f"{row.path}: steps {both} are in {last.split} and {row.split}")
        last = max(last, row, key=lambda each: each.end)
    splits: dict[str, dict[str, None]] = {}
    for row in used:
        if row.group:
            splits.setdefault(row.group, {})[row.split] = None
    leaks += [f"group {group!r} is in {' and '.join(known)}" for group, known in splits.items() if len(known) > 1]
    return leaks
