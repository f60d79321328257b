"""What a dataset is, as frozen dataclasses; `manifest_file.py` writes and reads them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .errors import SplitNotFoundError
from .features import Feature
from .record import RecordLayout, record_layout
from .statistics import Statistics
from .windows import WindowSpec

MAX_NONFINITE = 100


@dataclass(frozen=True)
class Shard:
    """One shard: its file's name, records, windows, size in bytes and SHA-256 in hexadecimal."""

    file: str
    records: int
    windows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """One split: the fraction asked for (a decimal number; None where the split of each episode was given), the
    episodes it has windows of, and its shards.
    """

    name: str
    fraction: str | None
    episodes: int
    shards: tuple[Shard, ...]

    @cached_property
    def records(self) -> int:
        """Records in all shards."""
        return sum(shard.records for shard in self.shards)

    @cached_property
    def windows(self) -> int:
        """Windows in all shards."""
        return sum(shard.windows for shard in self.shards)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @cached_property
    def firsts(self) -> NDArray[np.int64]:
        """The number, within the split, of each shard's first window, and the number of windows."""
        return np.cumsum([0, *(shard.windows for shard in self.shards)])


SplitBy = Literal["episode", "time", "hash", "given"]


@dataclass(frozen=True)
class Splitting:
    """How episodes came to splits: `by` whole episodes or groups, time, a hash, or as given by the user.

    `group_by` names the label column, or is the regular expression, that makes the groups; `purge` are the steps
    between neighbouring splits of one episode, beyond those that no two windows share.
    """

    by: SplitBy = "episode"
    group_by: str | None = None
    purge: int = 0


@dataclass(frozen=True)
class Source:
    """What the dataset was made from: the episodes used, their steps, and the bytes of the features in these.

    `short` episodes have no window, `skipped` ones could not be used (episodes.csv says why); `uncovered` steps of the
    other episodes lie in no window.
    """

    episodes: int
    steps: int
    bytes: int
    short: int
    skipped: int
    uncovered: int


@dataclass(frozen=True)
class Nonfinite:
    """How many values of a feature of an episode are NaN or infinite, and the first step that has one."""

    episode: int
    feature: str
    values: int
    step: int


@dataclass(frozen=True)
class Manifest:
    """A dataset: how its windows are cut, `features` of one window, `splits` in the order asked for.

    `statistics` are of the features along time of the `training_split`, each step counted once. `nonfinite` are the
    first places, MAX_NONFINITE at most, of values that are NaN or infinite, in any split. `episodes_sha256` is the
    digest of episodes.csv, `fingerprint` that of everything the shards' bytes depend on.
    """

    name: str
    window: WindowSpec
    seed: int
    features: tuple[Feature, ...]
    source: Source
    splitting: Splitting
    splits: tuple[Split, ...]
    statistics: tuple[Statistics, ...]
    nonfinite: tuple[Nonfinite, ...]
    episodes_sha256: str
    fingerprint: str

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of each record."""
        return record_layout(self.features, self.window)

    @property
    def windows(self) -> int:
        """Windows in all splits."""
        return sum(split.windows for split in self.splits)

    @property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(split.bytes for split in self.splits)

    @property
    def training_split(self) -> str:
        """The split that statistics are of: `train`, or the first one if there is none of that name."""
        names = [split.name for split in self.splits]
        return "train" if "train" in names else names[0]

    @property
    def measured_features(self) -> tuple[str, ...]:
        """The features that have statistics."""
        return tuple(feature.name for feature in self.features if feature.shape and "complex" not in feature.dtype)

    def split(self, name: str) -> Split:
        """The split of this name; SplitNotFoundError, which names those there are, when there is none."""
        for split in self.splits:
            if split.name == name:
                return split
        names = ", ".join(split.name for split in self.splits)
        raise SplitNotFoundError(f"dataset {self.name!r} has no split {name!r}; its splits are: {names}")
