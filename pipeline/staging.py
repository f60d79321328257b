"""The staging folder of a build: OUT/incomplete.tmp/KEY, KEY being that of its plan.

A job's plan does not travel through Beam: it lies here, where each worker reads the lines of the shards that it is
given. So the job's graph and its messages stay small however many episodes there are. Finished shards wait here, each
with a note of what is known of it, until all are there. A build of the same plan goes on with them; that of another
plan has another folder, so what an earlier one may still be writing can never come into it.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shards.episode_table import parse_episodes
from shards.errors import ManifestError, OutputError
from shards.manifest_file import format_manifest
from shards.naming import EPISODES, STAGING
from shards.tfds import tfds_files

from .draft import DatasetPlan
from .files import (
    TEMPORARY,
    delete_files,
    delete_folder,
    is_remote,
    join,
    list_files,
    make_folder,
    read_file,
    write_file,
    write_pieces,
)
from .notes import NOTE
from .tasks import ShardTask

DRAFT, FAILURES = "draft.json", "failures.json"
_TASKS, _TASK_INDEX, _INPUTS, _ASKED = "tasks.jsonl", "tasks.index.json", "inputs.npy", "asked.json"
_LISTED = 3  # files that a message names


def staged_folders(output: str) -> list[str]:
    """The staging folders in an output folder: one for each plan of which a build was begun and is not finished."""
    above = join(output, STAGING)
    return [join(above, name[:-1]) for name in list_files(above) if name.endswith("/")]


def stage_plan(plan: DatasetPlan) -> None:
    """Make the staging folder ready for a job: with the shards that an interrupted build of the same plan finished.

    Errors: OutputError, with nothing touched, if there are finished shards of another plan, unless `overwrite` is set.
    """
    others = [folder for folder in staged_folders(plan.output) if folder != plan.staging]
    begun = [folder for folder in others if any(name.endswith(NOTE) for name in list_files(folder))]
    if begun and not plan.options.overwrite:
        raise OutputError(
            f"{plan.output} holds an unfinished build, and this one is another: {_changed(begun[0], plan)}. Run the"
            " earlier command again to finish that, or begin anew with --overwrite"
        )
    above = join(plan.output, STAGING)
    if plan.options.overwrite or not is_remote(above):  # at a URL, which nobody locks, one may just have begun
        for folder in others:
            delete_folder(folder)
        delete_files([join(above, name) for name in list_files(above) if not name.endswith("/")])
    make_folder(plan.staging)
    left = [name for name in list_files(plan.staging) if name.endswith(TEMPORARY) or name == FAILURES]
    delete_files([join(plan.staging, name) for name in left])
    places: list[tuple[int, int]] = []
    write_pieces(join(plan.staging, _TASKS), _task_lines(plan, places))  # anew, as all below: nothing but finished
    files = {  # shards, which are checked, is taken over
        EPISODES: plan.episodes_csv,
        **tfds_files(plan.manifest),
        _TASK_INDEX: json.dumps(places).encode(),
        _INPUTS: _array_bytes(plan.episodes.states),
        _ASKED: json.dumps(plan.asked).encode(),
        DRAFT: format_manifest(plan.manifest),
    }
    for name, data in files.items():
        write_file(join(plan.staging, name), data)


def _task_lines(plan: DatasetPlan, places: list[tuple[int, int]]) -> Iterator[bytes]:
    """The line of each task, one in memory at a time; its place, (first byte, bytes), is added to `places`."""
    end = 0
    for task in plan.tasks():
        line = task.to_json()
        places.append((end, len(line)))
        end += len(line)
        yield line


def _array_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _changed(folder: str, plan: DatasetPlan) -> str:
    """In words, what is not as it was when the plan in a staging folder was made."""
    try:
        asked = dict(json.loads(read_file(join(folder, _ASKED))))
        before = {row.path: row.episode for row in parse_episodes(read_file(join(folder, EPISODES)))}
        states = np.load(io.BytesIO(read_file(join(folder, _INPUTS))), allow_pickle=False).tolist()
        earlier = {path: states[episode] for path, episode in before.items()}
    except (OSError, EOFError, ValueError, TypeError, LookupError, ManifestError) as error:
        return f"what it was asked for cannot be read ({error})"
    now = dict(zip(plan.episodes.paths, plan.episodes.states.tolist(), strict=True))
    changes = [*_changed_options(asked, plan.asked), *_changed_files(earlier, now)]
    return "; ".join(changes) or "it was begun with another version of this program"


def _changed_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What was asked for differently.

    >>> _changed_options({"shift": 4, "labels": "5f"}, {"shift": 8, "labels": "a0"})
    ['shift was 4 and is 8', 'the labels have other values']
    """
    changes = []
    for key in now:
        if key == "labels" and before.get(key) != now[key]:
            changes.append("the labels have other values")
        elif before.get(key) != now[key]:
            changes.append(f"{key} was {before.get(key)} and is {now[key]}")
    return changes


def _changed_files(before: Mapping[str, Sequence[int]], now: Mapping[str, Sequence[int]]) -> list[str]:
    """Which files came, went or were written to.

    >>> _changed_files({"a.npy": [8, 1], "b.npy": [8, 1]}, {"a.npy": [8, 2], "c.npy": [8, 1]})
    ['1 episode file is new: c.npy', '1 episode file is gone: b.npy', '1 episode file was modified: a.npy']
    """
    kinds = {
        "is new": sorted(now.keys() - before.keys()),
        "is gone": sorted(before.keys() - now.keys()),
        "was modified": sorted(path for path in now.keys() & before.keys() if list(now[path]) != list(before[path])),
    }
    changes = []
    for what, paths in kinds.items():
        if paths:
            more = ", ..." if len(paths) > _LISTED else ""
            count = "1 episode file" if len(paths) == 1 else f"{len(paths)} episode files"
            verb = what if len(paths) == 1 else what.replace("is ", "are ").replace("was ", "were ")
            changes.append(f"{count} {verb}: {', '.join(paths[:_LISTED])}{more}")
    return changes


def read_draft(staging: str) -> bytes:
    """The draft of the manifest, as it was staged."""
    return read_file(join(staging, DRAFT))


def task_places(staging: str) -> list[tuple[int, int]]:
    """(first byte, bytes) of each task in the staged tasks."""
    return [(begin, size) for begin, size in json.loads(read_file(join(staging, _TASK_INDEX)))]


def read_task(staging: str, place: tuple[int, int]) -> ShardTask:
    """One staged task."""
    return ShardTask.from_json(read_file(join(staging, _TASKS), *place))
