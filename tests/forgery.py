"""Damage and forgeries of datasets, for the tests of `verify`."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from shards import Dataset
from shards.episode_table import EpisodeRow, format_episodes, parse_episodes
from shards.manifest_file import format_manifest


def patch(file: Path, begin: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(begin)
        opened.write(data)


def rewrite_episodes(dataset: Dataset, change: Callable[[list[EpisodeRow]], list[EpisodeRow]]) -> None:
    """Replace episodes.csv and its digest in the manifest, as only somebody who means to could."""
    file = dataset.folder / "episodes.csv"
    data = format_episodes(change(list(parse_episodes(file.read_bytes()))))
    file.write_bytes(data)
    changed = replace(dataset.manifest, episodes_sha256=sha256(data).hexdigest())
    (dataset.folder / "manifest.json").write_bytes(format_manifest(changed))


def window(dataset: Dataset, file: str, record: int, split: str = "train") -> str:
    windows = dataset[split]
    before = sum(shard.windows for shard in windows.split.shards if shard.file < file)
    path, start = windows.locate(before + record)
    return f"the window of {path} from step {start} on"


def rewrite_shard(dataset: Dataset, change: Callable[[np.ndarray], None]) -> str:
    """Change the records of train's first shard, mend checksums and digests, and give its name: the worst forgery."""
    split = dataset["train"].split
    file, layout = dataset.folder / split.shards[0].file, dataset.manifest.layout
    records = np.fromfile(file, np.uint8).reshape(-1, layout.record_bytes)
    change(records)
    layout.write_checksums(records)
    file.write_bytes(records.tobytes())
    shard = replace(split.shards[0], sha256=sha256(records.tobytes()).hexdigest())
    splits = tuple(
        replace(each, shards=(shard, *each.shards[1:])) if each.name == "train" else each
        for each in dataset.manifest.splits
    )
    (dataset.folder / "manifest.json").write_bytes(format_manifest(replace(dataset.manifest, splits=splits)))
    return file.name


def rewrite_manifest(dataset: Dataset, **changes: object) -> None:
    (dataset.folder / "manifest.json").write_bytes(format_manifest(replace(dataset.manifest, **changes)))
