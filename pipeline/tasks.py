"""What a worker is told of a shard, and what it tells of it: plain values, which Beam and JSON carry."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from shards.features import Feature
from shards.files import FileState
from shards.record import RecordLayout, record_layout
from shards.windows import WindowSpec

from .source import Form


class SourceEpisode(NamedTuple):
    """An episode and the section of it that a split has: the steps [begin, begin + steps) of its `file_steps`.

    `form` is the place in `Recipe.forms` of how its arrays lie in the file at `path` below the input root, each from
    one of `offsets` on; `state` is what the file was when that was planned; `labels` are its values of `Recipe.labels`.
    """

    path: str
    state: FileState
    file_steps: int
    form: int
    offsets: tuple[int, ...]
    begin: int
    steps: int
    labels: tuple[int | float, ...]


class Span(NamedTuple):
    """The records [first, first + size) of the section of the episode with this number."""

    episode: int
    first: int
    size: int


class ShardTask(NamedTuple):
    """One shard to write: its file's name, the key of its order, its spans and the episodes that these name.

    `measured` says whether the shard's steps count for the statistics.
    """

    file: str
    key: tuple[int, ...]
    measured: bool
    spans: tuple[Span, ...]
    episodes: dict[int, SourceEpisode]

    def to_json(self) -> bytes:
        """One line of JSON."""
        return json.dumps([*self[:-1], list(self.episodes.items())]).encode() + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> "ShardTask":
        """The inverse of `to_json`."""
        file, key, measured, spans, episodes = json.loads(line)
        sources = {
            i: SourceEpisode(path, FileState(*state), steps, form, tuple(offsets), begin, section, tuple(labels))
            for i, (path, state, steps, form, offsets, begin, section, labels) in episodes
        }
        return cls(file, tuple(key), measured, tuple(Span(*span) for span in spans), sources)


class ShardDone(NamedTuple):
    """What came of a task: the finished file, or why there is none (`error`, empty if all went well).

    `nonfinite` are the first of (episode, feature, how many NaN and infinite values, the first step that has one).
    """

    file: str
    records: int = 0
    windows: int = 0
    bytes: int = 0
    sha256: str = ""
    error: str = ""
    nonfinite: tuple[tuple[int, str, int, int], ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What all shards of a job have in common; `shard_bytes` are those of the largest.

    `picked` are the arrays that were asked for; `labels` the features whose values come with the tasks.
    """

    root: str
    staging: str
    spec: WindowSpec
    features: tuple[Feature, ...]
    labels: tuple[str, ...]
    picked: tuple[str, ...] | None
    forms: tuple[Form, ...]
    fail_nonfinite: bool
    shard_bytes: int

    @cached_property
    def step_bytes(self) -> int:
        """Bytes of one step of all features, as they are stored."""
        return sum(feature.nbytes // self.spec.length for feature in self.features if feature.shape)

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of each record."""
        return record_layout(self.features, self.spec)
