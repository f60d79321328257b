"""What is known of a finished shard, in a small file beside it.

The note is written last: a shard that has one is whole, and a build that was interrupted goes on with it.
"""

import base64
import json
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from shards.moments import Moments

from .files import delete_files, exists, join, open_file, read_file, write_file
from .tasks import ShardDone

#: What is added to a shard's name for its note, in the staging folder.
NOTE = ".note.json"
_BLOCK_BYTES = 2**22


class Note(NamedTuple):
    """A finished shard, and the moments of those of its steps that count for the statistics."""

    done: ShardDone
    moments: dict[str, Moments]


def write_note(staging: str, done: ShardDone, moments: Mapping[str, Moments]) -> None:
    """Note that a shard in the staging folder is finished."""
    parts = {name: base64.b64encode(part.to_bytes()).decode() for name, part in moments.items()}
    write_file(join(staging, done.file + NOTE), json.dumps({"done": done, "moments": parts}).encode())


def read_note(staging: str, file: str) -> Note:
    """The inverse of `write_note`. Errors: OSError, and ValueError for what it cannot have written."""
    text = read_file(join(staging, file + NOTE))
    try:
        document = json.loads(text)
        done = ShardDone(*document["done"])
        done = done._replace(
            nonfinite=tuple((episode, name, count, step) for episode, name, count, step in done.nonfinite)
        )
        parts = {name: base64.b64decode(part, validate=True) for name, part in document["moments"].items()}
        return Note(done, {name: Moments.from_bytes(part) for name, part in parts.items()})
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the note of {file} is damaged: {error!r}") from None


def delete_note(staging: str, file: str) -> None:
    """Forget that a shard is finished, if it is."""
    if exists(join(staging, file + NOTE)):
        delete_files([join(staging, file + NOTE)])


def finished_shard(staging: str, file: str, records: int, nbytes: int) -> ShardDone | None:
    """What is noted of a shard that is finished, its file checked by size and digest; None if it must be written."""
    try:
        if not exists(join(staging, file + NOTE)):
            return None
        done = read_note(staging, file).done
        digest, size = sha256(), 0
        with open_file(join(staging, file)) as opened:
            while block := opened.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
    except (OSError, ValueError):  # a file that is gone or damaged is written anew
        return None
    found = ShardDone(file, records, done.windows, nbytes, digest.hexdigest(), "", done.nonfinite)
    return done if size == nbytes and found == done else None
