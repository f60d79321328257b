"""Reads copies of a dataset whose shards are damaged meanwhile. `test_damage.py` runs this with a folder and ways.

Prints a line of JSON for each way, damage and time: how it ended. Window w of a right shard is w[0], w[0] + 1, ..., and
its values are less than a million; those of the shard that replaces it are not.
"""

import json
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shards import ShardError, Windows, load_manifest, open_dataset

TIMES = 2


def truncate(shard: Path) -> None:
    """Cut the shard short, at any byte."""
    os.truncate(shard, random.randrange(shard.stat().st_size))


def delete(shard: Path) -> None:
    """Delete the shard."""
    shard.unlink()


def replace(shard: Path) -> None:
    """Put another shard of the same size in its place."""
    (shard.parent / "other" / shard.name).replace(shard)


def overwrite(shard: Path) -> None:
    """Write a byte in the middle of the shard."""
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        file.write(b"?")


def at_random(windows: Windows) -> Iterator[np.ndarray]:
    """Batches in bare NumPy, and all windows, in turns."""
    while True:
        for numbers in np.random.default_rng().integers(0, len(windows), (20, 50)):
            yield windows[numbers]["window"]
        yield windows[:]["window"]


def streamed(folder: Path, **options: Any) -> Iterable[np.ndarray]:
    """Batches of `load`."""
    from reader import load  # bare NumPy starts without TensorFlow

    return (batch["window"].numpy() for batch in load(folder, batch_size=64, epochs=None, **options))


WAYS: dict[str, tuple[str, Callable[[Path], Iterable[np.ndarray]]]] = {
    "numpy": ("small", lambda folder: at_random(open_dataset(folder)["train"])),
    "numpy_shared": ("shared", lambda folder: at_random(open_dataset(folder)["train"])),
    "numpy_large": ("large", lambda folder: at_random(open_dataset(folder)["train"])),
    "shuffled": ("small", lambda folder: streamed(folder, pool=1)),
    "shared": ("shared", lambda folder: streamed(folder, pool=1)),
    "large": ("large", lambda folder: streamed(folder, pool=1)),
    "unshuffled": ("small", lambda folder: streamed(folder, shuffle=False)),
    "unshuffled_large": ("large", lambda folder: streamed(folder, shuffle=False)),
}
DAMAGES = {damage.__name__: damage for damage in (truncate, delete, replace, overwrite)}


def ending(batches: Iterable[np.ndarray], windows: int, damage: Callable[[Path], None], shard: Path) -> str:
    """How three epochs of so many windows end, after a shard was damaged: "right", "wrong" or a ShardError's text."""
    timer, left = threading.Timer(random.uniform(0, 0.05), damage, [shard]), 3 * windows
    timer.start()
    try:
        for batch in batches:
            if not (batch == batch[:, :1] + np.arange(batch.shape[1])).all() or batch.max() >= 1_000_000:
                return "wrong"
            left -= 0 if timer.is_alive() else len(batch)
            if left < 0:
                break
        return "right"
    except ShardError as error:
        return str(error)
    finally:
        timer.join()


def main(root: Path, names: list[str]) -> None:
    """All damages, some times each, of each way."""
    for name in names:
        kind, way = WAYS[name]
        for damage in DAMAGES.values():
            for _ in range(TIMES):
                with tempfile.TemporaryDirectory(dir=root) as copy:
                    folder = shutil.copytree(root / kind / "d", Path(copy, "d"))
                    shutil.copytree(root / "other" / kind / "d", Path(folder, "other"))
                    shard = random.choice(sorted(folder.glob("*.tfrecord-*")))
                    end = ending(way(folder), load_manifest(folder).windows, damage, shard)
                print(json.dumps([name, damage.__name__, end.replace(str(shard), "SHARD")]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
