"""What a window costs, how soon the first batch comes, and what memory it takes, as a dataset grows.

Datasets of one shape (B: 1024 steps, 256 apart, batches of 256) with ever more shards of one size, and with ever more
windows in 16 shards. Each is read in a process of its own, shuffled, as (x, x); they take turns, medians count. MB are
10**6 bytes; memory is what comes to TensorFlow's own, without the page cache.
"""

import argparse
import multiprocessing
import os
import shlex
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf

from data import SHAPES
from machine import describe_machine, resident_memory, write_results
from pipeline import BuildOptions, build
from reader import load

_SHAPE = SHAPES["B"]
_SHARD_WINDOWS = 256  # 1 MB
_EPISODES = 32


@dataclass(frozen=True)
class Row:
    """One dataset: medians, `own_mb` the largest."""

    shards: int
    windows: int
    windows_per_s: float
    first_batch_s: float
    own_mb: float


def make(folder: Path, shards: int, windows: int) -> Path:
    """A dataset of so many windows, give or take those at the episodes' ends."""
    each = -(-windows // _EPISODES)
    steps = np.random.default_rng(0).standard_normal(_SHAPE.length + (each - 1) * _SHAPE.shift, np.float32)
    (folder / "episodes").mkdir(parents=True)
    for i in range(_EPISODES):
        np.save(folder / "episodes" / f"{i:02d}.npy", steps)
    build(
        BuildOptions(
            inputs=(str(folder / "episodes"),),
            output=str(folder / "shards"),
            window_length=_SHAPE.length,
            shift=_SHAPE.shift,
            num_shards=shards,
        )
    )
    return folder / "shards"


def measure(folder: Path, seconds: float) -> tuple[float, float, float]:
    """(windows per second, seconds from `load` to the first batch, MB), in a process in which nothing else has run."""
    tf.reduce_sum(tf.zeros(1))  # TensorFlow starts
    before = resident_memory()
    start = time.perf_counter()
    dataset = load(folder, batch_size=_SHAPE.batch, targets="same", epochs=None)
    batches = iter(dataset)
    next(batches)
    first = time.perf_counter() - start
    while time.perf_counter() - start < seconds / 2:
        next(batches)
    begun, seen, count = time.perf_counter(), [], 0
    while time.perf_counter() - begun < seconds:
        count += len(next(batches)[0])
        if count % (100 * _SHAPE.batch) == 0:
            seen.append(resident_memory())
    speed = count / (time.perf_counter() - begun)
    own = max(memory for memory in seen if memory) - before if before and seen else float("nan")
    return speed, first, own


def main() -> None:
    """Make, measure, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--shards", default="16,128,1024", help="of 256 windows each")
    parser.add_argument("--windows", default="4096,40960,409600", help="in 16 shards")
    parser.add_argument("--seconds", type=float, default=3, help="of each run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=tempfile.gettempdir(), help="where the data are made")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/growth.json"), help="results")
    options = parser.parse_args()
    sizes = [(int(n), int(n) * _SHARD_WINDOWS) for n in options.shards.split(",")]
    sizes = list(dict.fromkeys(sizes + [(16, int(n)) for n in options.windows.split(",")]))
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-growth-", dir=options.folder) as root:
        folders = [make(Path(root, f"{shards}-{windows}"), shards, windows) for shards, windows in sizes]
        runs: list[list[tuple[float, float, float]]] = [[] for _ in sizes]
        for _ in range(options.repeats):
            for folder, measured in zip(folders, runs, strict=True):
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                    measured.append(process.submit(measure, folder, options.seconds).result())
        for size, measured in zip(sizes, runs, strict=True):
            speed, first, own = zip(*measured, strict=True)
            rows.append(Row(*size, statistics.median(speed), statistics.median(first), max(own)))
    print(f"{'shards':>7}{'windows':>9}{'windows/s':>11}{'first batch':>13}{'memory':>10}")
    for row in rows:
        speed = f"{row.windows_per_s:,.0f}"
        print(f"{row.shards:>7}{row.windows:>9}{speed:>11}{row.first_batch_s:>11.2f} s{row.own_mb:>7.0f} MB")
    command = shlex.join(["python", "benchmarks/bench_growth.py", *sys.argv[1:]])
    write_results(
        options.json,
        {"machine": describe_machine(), "command": command, "rows": [asdict(row) for row in rows]},
    )


if __name__ == "__main__":
    main()
