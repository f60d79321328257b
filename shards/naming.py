"""Names of datasets, splits, features and shard files; a shard's with its inverse.

A shard is called as TFDS calls it: `NAME-SPLIT.tfrecord-00003-of-00016`.
"""

import re
from dataclasses import dataclass

MANIFEST = "manifest.json"
EPISODES = "episodes.csv"
DATASET_INFO = "dataset_info.json"
FEATURES = "features.json"
#: The folder in a dataset's where a build keeps its files until all of them are whole.
STAGING = "incomplete.tmp"

# The names that TFDS finds again, whichever way it is asked: lower case, and no dash, which parts dataset from split.
_NAME = re.compile("[a-z][a-z0-9_]*")
_SHARD = re.compile(
    rf"(?P<dataset>{_NAME.pattern})-(?P<split>{_NAME.pattern})"
    r"\.tfrecord-(?P<index>[0-9]{5,9})-of-(?P<count>[0-9]{5,9})"
)
_FEATURE = re.compile("[A-Za-z_][A-Za-z0-9_.-]{0,99}")
#: What records and batches hold besides the features.
RESERVED = ("episode", "start", "count", "valid", "mask")
FEATURE_RULE = (
    "up to 100 letters, digits, underscores, dots and dashes, beginning with a letter or an underscore, and none of "
    + ", ".join(RESERVED)
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
    return isinstance(text, str) and len(text) <= 100 and _NAME.fullmatch(text) is not None


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


def is_feature_name(text: str) -> bool:
    """Whether `text` can name a feature: see FEATURE_RULE.

    >>> is_feature_name("observation.image"), is_feature_name("start"), is_feature_name("2nd")
    (True, False, False)
    """
    return _FEATURE.fullmatch(text) is not None and text not in RESERVED
