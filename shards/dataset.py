"""Random access to a dataset's windows with NumPy alone: `open_dataset(path)["train"][i]`."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .episode_table import episode_paths, read_episodes
from .errors import ShardError
from .features import Feature
from .fetch import Fetcher
from .gather import columns_of
from .manifest import Manifest
from .manifest_file import load_manifest
from .naming import EPISODES
from .pieces import Piece, whole_shards
from .record import EPISODE, START
from .remote import Place, RemoteFiles, place_of
from .windows import Int64s


def open_dataset(path: Place, remote: RemoteFiles | None = None) -> "Dataset":
    """Open the dataset in the folder `path`: a mapping from the names of its splits to their `Windows`.

    The folder may be a URL, such as gs://bucket/out: fsspec reads it, or `remote`. Windows that lie far apart are then
    a request each, many at a time.
    Errors: those of `load_manifest`; when a split is first asked for, SplitNotFoundError, and ShardError for a shard
    that is missing or not of the manifest's size.
    """
    return Dataset(place_of(path), load_manifest(path, remote), remote)


class Dataset(Mapping[str, "Windows"]):
    """A dataset on disk: `dataset["train"]` are the windows of a split, `dataset.manifest` says everything else."""

    def __init__(self, folder: Place, manifest: Manifest, remote: RemoteFiles | None = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self._remote = remote
        self._windows: dict[str, Windows] = {}

    def __getitem__(self, split: str) -> "Windows":
        if split not in self._windows:
            self._windows[split] = Windows(self.folder, self.manifest, split, self._remote)
        return self._windows[split]

    def __contains__(self, split: object) -> bool:
        return any(known.name == split for known in self.manifest.splits)

    def __iter__(self) -> Iterator[str]:
        return (split.name for split in self.manifest.splits)

    def __len__(self) -> int:
        return len(self.manifest.splits)

    def __repr__(self) -> str:
        splits = ", ".join(f"{split.name}={split.windows}" for split in self.manifest.splits)
        return f"<Dataset {self.manifest.name!r} in {str(self.folder)!r}: windows {splits}>"

    @cached_property
    def episode_paths(self) -> tuple[str, ...]:
        """The path of each episode below the input root, by the number that windows give as `episode`."""
        return episode_paths(read_episodes(self.folder, self.manifest, self._remote))


class Windows:
    """The windows of one split, in the shuffled order in which they lie on disk.

    `w[i]` is one window, a dict of feature arrays of shape (length, ...), or () for values of the whole episode;
    `w[indices]`, for an integer array or a slice of B windows, a dict of arrays of shape (B, length, ...) or (B,).
    Where windows may be padded there is also `valid`, the number of real steps. Negative indices count from the end.
    All are copies.
    Errors: ShardError, which names the shard, if one cannot be read or has changed since the split was first asked for.
    """

    def __init__(
        self,
        folder: Place,
        manifest: Manifest,
        split_name: str,
        remote: RemoteFiles | None = None,
        shards: Sequence[Piece] | None = None,
    ) -> None:
        self.split = split = manifest.split(split_name)
        self.folder, self._remote = folder, remote
        self._manifest, self._columns = manifest, columns_of(manifest)
        self.shards = list(shards or whole_shards(folder, split.shards, remote))
        self._fetcher = Fetcher(manifest, self.shards)

    def reading(self, shards: Sequence[Piece]) -> "Windows":
        """The same windows, read from other places, such as copies."""
        return Windows(self.folder, self._manifest, self.split.name, self._remote, shards)

    def __len__(self) -> int:
        return self.split.windows

    def __repr__(self) -> str:
        shapes = {column.name: (len(self), *column.shape) for column in self._columns}
        return f"<Windows {self.split.name!r} of {self._manifest.name!r}: {shapes}>"

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: "int | slice | ArrayLike") -> dict[str, np.ndarray]:
        indices, scalar = self._indices(index)
        batch = self._gather(indices, self._columns)
        return {name: values[0] for name, values in batch.items()} if scalar else batch

    def locate(self, i: int) -> tuple[str, int]:
        """Where window i was cut from: the episode's path below the input root, and its first step there."""
        indices, scalar = self._indices(i)
        if not scalar:
            raise TypeError("locate takes one window's index; use provenance for arrays of them")
        where = self._gather(indices, (EPISODE, START))
        episode, paths = int(where["episode"][0]), self._episode_paths
        if not episode < len(paths):
            raise ShardError(
                f"window {i} of split {self.split.name} in {self.folder} is of episode {episode}, of which {EPISODES}"
                " has no row: its shard is damaged; copy or build the dataset again"
            )
        return paths[episode], int(where["start"][0])

    def provenance(self, index: "int | slice | ArrayLike" = slice(None)) -> dict[str, NDArray[np.int64]]:
        """`episode` (its row in episodes.csv) and `start` (first step) of windows: two int64 arrays of shape (B,)."""
        return self._gather(self._indices(index)[0], (EPISODE, START))

    @cached_property
    def _episode_paths(self) -> tuple[str, ...]:
        return episode_paths(read_episodes(self.folder, self._manifest, self._remote))

    def _indices(self, index: Any) -> tuple[NDArray[np.int64], bool]:
        if isinstance(index, slice):
            return np.arange(*index.indices(len(self))), False
        indices = np.asarray(index)
        if indices.size == 0:
            indices = indices.astype(np.int64)
        if indices.dtype == bool or not np.issubdtype(indices.dtype, np.integer) or indices.ndim > 1:
            raise TypeError(f"an index is an integer, a slice or a 1-D array of integers, not {index!r:.100}")
        outside = (indices < -len(self)) | (indices >= len(self))
        if outside.any():
            raise IndexError(f"index {indices[outside].flat[0]} is out of range for {len(self)} windows")
        indices = indices.astype(np.int64)
        return np.atleast_1d(np.where(indices < 0, indices + len(self), indices)), indices.ndim == 0

    def _gather(self, indices: Int64s, columns: tuple[Feature, ...]) -> dict[str, np.ndarray]:
        outs = [np.empty((len(indices), *column.shape), column.numpy_dtype) for column in columns]
        self.fetch(indices, columns, outs)
        return {column.name: out for column, out in zip(columns, outs, strict=True)}

    def fetch(self, indices: Int64s, columns: tuple[Feature, ...], outs: Sequence[np.ndarray]) -> None:
        """Read columns of the windows of B indices of 0 or more into contiguous arrays (B, ...). Errors: ShardError."""
        self._fetcher.fetch(indices, columns, outs)
