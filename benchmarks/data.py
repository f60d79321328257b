"""Synthetic episodes, in memory and as a dataset of shards: what every system of `bench_stream.py` is given."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import BuildOptions, build
from shards import Feature
from shards.record import record_layout
from shards.windows import WindowSpec

_EPISODES = 32
_SHARDS = 8
_SHARD_MEGABYTES = 125  # where more than _SHARDS are needed


@dataclass(frozen=True)
class Shape:
    """Windows of `length` float32 values, `shift` steps apart, in batches of `batch`."""

    length: int
    shift: int
    batch: int

    @property
    def window_bytes(self) -> int:
        """The payload of one window."""
        return 4 * self.length


SHAPES = {"A": Shape(64, 1, 256), "B": Shape(1024, 256, 256), "C": Shape(16384, 4096, 32)}


@dataclass(frozen=True)
class Data:
    """The same episodes as arrays of shape (T,) and as the dataset in `folder`.

    `pair` asks for batches (x, x), else x; the replicas of `strategy`, if there is one, share each.
    """

    shape: Shape
    pair: bool
    folder: Path
    episodes: tuple[NDArray[np.float32], ...]
    strategy: Any = None

    @cached_property
    def steps(self) -> NDArray[np.float32]:
        """All episodes, end to end."""
        return np.concatenate(self.episodes)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first step of every window, in `steps`."""
        firsts = np.cumsum([0] + [len(episode) for episode in self.episodes])
        each = (np.arange(0, len(e) - self.shape.length + 1, self.shape.shift) for e in self.episodes)
        return np.concatenate([first + starts for first, starts in zip(firsts, each, strict=False)])

    @cached_property
    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The episodes by the names of their files."""
        return {_file_name(i): episode for i, episode in enumerate(self.episodes)}

    @cached_property
    def segments(self) -> list[tuple[str, int]]:
        """Every window as (file, first step there)."""
        length, shift = self.shape.length, self.shape.shift
        return [(file, s) for file, e in self.arrays.items() for s in range(0, len(e) - length + 1, shift)]

    @property
    def windows(self) -> int:
        """How many windows."""
        return len(self.starts)


def make_data(shape: Shape, megabytes: float, folder: Path, pair: bool) -> Data:
    """Make episodes of about `megabytes` (10**6 bytes) of shards below `folder`, and build the dataset from them."""
    episodes = _make_episodes(shape, megabytes)
    (folder / "episodes").mkdir(parents=True)
    for i, episode in enumerate(episodes):
        np.save(folder / "episodes" / _file_name(i), episode)
    options = BuildOptions(
        inputs=(str(folder / "episodes"),),
        output=str(folder / "shards"),
        window_length=shape.length,
        shift=shape.shift,
        num_shards=max(_SHARDS, round(megabytes / _SHARD_MEGABYTES)),
    )
    build(options)
    return Data(shape, pair, folder / "shards", episodes)


def window_bytes(data: Data) -> Counter[bytes]:
    """The windows that there should be, as a multiset of their bytes, by brute force."""
    length, windows = data.shape.length, Counter[bytes]()
    for episode in data.episodes:
        start = 0
        while start + length <= len(episode):
            windows[episode[start : start + length].tobytes()] += 1
            start += data.shape.shift
    return windows


def _make_episodes(shape: Shape, megabytes: float) -> tuple[NDArray[np.float32], ...]:
    """Noise, so that no two windows are alike; of uneven lengths, with steps left over at most ends."""
    random = np.random.default_rng(0)
    record_bytes = record_layout(
        [Feature("window", "float32", (shape.length,))], WindowSpec(shape.length, shape.shift)
    ).record_bytes
    shares = random.uniform(0.5, 1.5, _EPISODES)
    windows = np.maximum(1, np.rint(megabytes * 1e6 / record_bytes * shares / shares.sum())).astype(int)
    steps = shape.length + (windows - 1) * shape.shift + random.integers(shape.shift, size=_EPISODES)
    return tuple(random.standard_normal(n, np.float32) for n in steps.tolist())


def _file_name(episode: int) -> str:
    return f"{episode:04d}.npy"
