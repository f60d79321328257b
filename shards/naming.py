"""Names of datasets, splits and shard files, each with its inverse.

A shard is called as TFDS calls it: `NAME-SPLIT.tfrecord-00003-of-00016`.
"""

import re
from dataclasses import dataclass

MANIFEST = "manifest.json"
EPISODES = "episodes.csv"
DATASET_INFO = "dataset_info.json"
FEATURES = "features.json"

# The names that TFDS finds again, whichever way it is asked: lower case, and no dash, which parts dataset from split.
_NAME = re.compile("[a-z][a-z0-9_]*")
_SHARD = re.compile(
    rf"(?P<dataset>{_NAME.pattern})-(?P<split>{_NAME.pattern})"
    r"\.tfrecord-(?P<index>[0-9]{5,9})-of-(?P<count>[0-9]{5,9})"
)
NAME_RULE = "a lower-case letter, then lower-case letters, digits and underscores (and a split not 'all')"


@dataclass(frozen=True)
class ShardName:
    """What a shard's file name says: dataset, split, and that it is the shard `index` of `count`."""

    dataset: str
    split: str
    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.dataset}-{self.split}.tfrecord-{self.index:05d}-of-{self.count:05d}"


def parse_shard_name(file_name: str) -> ShardName | None:
    """The inverse of `str(ShardName(...))`; None for any other file name.

    >>> parse_shard_name("cartpole-train.tfrecord-00003-of-00016")
    ShardName(dataset='cartpole', split='train', index=3, count=16)
    >>> parse_shard_name("notes.txt") is None
    True
    """
    match = _SHARD.fullmatch(file_name)
    if match is None:
        return None
    name = ShardName(match["dataset"], match["split"], int(match["index"]), int(match["count"]))
    return name if str(name) == file_name and name.index < name.count else None


def is_name(text: str) -> bool:
    """Whether `text` can name a dataset: see NAME_RULE; 100 characters at most."""
    return len(text) <= 100 and _NAME.fullmatch(text) is not None


def is_split_name(text: str) -> bool:
    """Whether `text` can name a split: as a dataset, but not "all", which is every split together in TFDS."""
    return is_name(text) and text != "all"


def to_name(text: str) -> str:
    """The dataset name nearest to any text, such as a folder's name.

    >>> to_name("My data-v2"), to_name("2026"), to_name("")
    ('my_data_v2', 'dataset_2026', 'dataset')
    """
    cleaned = re.sub("[^a-z0-9_]", "_", text.lower())[:80]
    return cleaned if is_name(cleaned) else f"dataset_{cleaned.strip('_')}".rstrip("_")[:80]


def is_dataset_file(file_name: str) -> bool:
    """Whether a dataset could have written a file of this name."""
    return file_name in {MANIFEST, EPISODES, DATASET_INFO, FEATURES} or parse_shard_name(file_name) is not None
