"""Which files are the episodes: from folders, globs and files to a sorted list, local or on any Beam file system."""

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shards.episode_table import leads_out
from shards.errors import EpisodeError
from shards.files import FileState
from shards.text import printable

from .files import exists, file_state, files_below, is_remote

SUFFIXES = (".npy", ".npz")


class EpisodeFile(NamedTuple):
    """One file: `root` + `path` opens it; `path` goes into the dataset; `state` is what it was when it was listed."""

    root: str
    path: str
    state: FileState


def find_episodes(inputs: Sequence[str]) -> list[EpisodeFile]:
    """Every episode file of the inputs once, sorted by its path below the folder that all inputs share.

    A folder stands for every `.npy` and `.npz` file below it. In a glob, `*` and `?` stay within a folder, `**` crosses
    them.
    Errors: EpisodeError for an input that is not there, cannot be listed or matches nothing.
    """
    places = [text if is_remote(text) else os.path.abspath(text) for text in inputs]
    if len({is_remote(place) for place in places}) > 1:
        raise EpisodeError("inputs must be all local paths or all URLs: " + ", ".join(inputs))
    states: dict[str, FileState] = {}
    folders = []
    for text, place in zip(inputs, places, strict=True):
        try:
            folder, files = _expand(place)
            matched = dict(files)
        except EpisodeError:
            raise
        except (OSError, ValueError) as error:  # Beam's are OSErrors too, but a ValueError for an unknown kind of URL
            missing = getattr(error, "filename", None) or text
            why = getattr(error, "strerror", None) or error
            raise EpisodeError(f"input {missing!r} cannot be listed: {why}") from error
        folders.append(folder)
        if not matched:
            raise EpisodeError(
                f"input {text!r} matches no {' or '.join(SUFFIXES)} file; give a folder, a file or a glob with **"
            )
        states |= matched
    if not is_remote(places[0]):
        _refuse_same_files(states)
    root = _common_folder(folders)
    for path in states:
        if leads_out(path[len(root) :]):  # an object may be called so
            raise EpisodeError(f"{printable(path)} has an empty part or a part '..' in its path: rename it")
    return sorted((EpisodeFile(root, path[len(root) :], state) for path, state in states.items()), key=lambda f: f.path)


def _refuse_same_files(paths: Iterable[str]) -> None:
    """EpisodeError if two local paths are one file, by links: it would be two episodes, perhaps of two splits."""
    seen: dict[tuple[int, int], str] = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue  # told later, with all others that cannot be read
        other = seen.setdefault((status.st_dev, status.st_ino), path)
        if other != path:
            same = f"{printable(other)} and {printable(path)}"
            raise EpisodeError(f"{same} are the same file, by a link: leave one of them out")


def _expand(place: str) -> tuple[str, Iterator[tuple[str, FileState]]]:
    """(the folder that an input names, all its files with their states)."""
    found = exists(place)
    glob = re.search(r"[*?\[]", place)
    if glob is not None and not found:  # a file may well be called "run[1].npy"
        folder = place[: place.rindex("/", 0, glob.start()) + 1]
        pattern = re.compile(glob_to_regex(place), re.DOTALL)
        return folder, (item for item in files_below(folder) if pattern.fullmatch(item[0]))
    if found and (place.endswith(SUFFIXES) if is_remote(place) else not os.path.isdir(place)):
        folder = place[: place.rindex("/") + 1]
        return folder, iter([(place, file_state(place))])
    if not found and not is_remote(place):  # on an object store a folder is no more than the files in it
        raise EpisodeError(f"input {place!r} is not there")
    folder = place.rstrip("/") + "/"
    return folder, (item for item in files_below(folder) if item[0].endswith(SUFFIXES))


def glob_to_regex(glob: str) -> str:
    """A glob as a regular expression for the whole path.

    >>> bool(re.fullmatch(glob_to_regex("a/**/*.npy"), "a/x.npy")), bool(re.fullmatch(glob_to_regex("*"), "a/x"))
    (True, False)
    """
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[(?:!.[^\]]*|[^!][^\]]*)\])", glob)
    return "".join(
        wild.get(part) or (_charset(part) if part.startswith("[") and part.endswith("]") else re.escape(part))
        for part in parts
    )


def _charset(part: str) -> str:
    inside = re.fullmatch(r"\(\?s:(.*)\)\\[zZ]", fnmatch.translate(part), re.DOTALL)
    assert inside is not None
    return f"(?!/){inside[1]}"


def _common_folder(folders: Sequence[str]) -> str:
    first, last = min(folders), max(folders)  # whatever these two share, all share
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: first.rindex("/", 0, shared) + 1]
