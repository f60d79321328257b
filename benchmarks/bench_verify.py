"""How fast `shards verify` is, beside reading, hashing and TensorFlow's own reader of the same shards, in one run.

    python benchmarks/bench_verify.py

Shapes are those of bench_stream.py. Every system reads all shards once, in turns; MB/s of shards. The start of this
process is left out, that of the command and of workers is not. Cold means that the system was asked to drop the shards
from its cache before.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from machine import describe_machine, write_results
from shards import load_manifest
from shards.cores import core_count
from shards.verify import examine
from shards.verify.side_by_side import in_processes, in_threads

BLOCK = 2**22


def read(files: list[Path], workers: int) -> None:
    """Read all files, each from its begin to its end."""

    def one(file: Path) -> None:
        block = memoryview(bytearray(BLOCK))
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(block):
                pass

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, files))


def hash_all(files: list[Path], workers: int) -> None:
    """SHA-256 of all files."""

    def one(file: Path) -> None:
        block, digest = memoryview(bytearray(BLOCK)), sha256()
        with file.open("rb", buffering=0) as opened:
            while got := opened.readinto(block):
                digest.update(block[:got])

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, files))


def tensorflow_records(files: list[Path], workers: int) -> None:
    """Each record through TFRecordDataset, which checks both checksums; counted in TensorFlow, not in Python."""
    import tensorflow as tf

    names = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    records = names.interleave(
        partial(tf.data.TFRecordDataset, buffer_size=BLOCK),
        cycle_length=workers,
        block_length=256,
        num_parallel_calls=workers,
        deterministic=False,
    )
    int(records.reduce(np.int64(0), lambda n, record: n + tf.cast(tf.strings.length(record), tf.int64)))


def verify_here(folder: Path, source: Path | None, workers: int) -> None:
    """`verify` as a function: threads of this process."""
    assert not examine(folder, source, partial(in_threads, workers=workers)).faults


def verify_in_processes(folder: Path, source: Path | None, workers: int) -> None:
    """What the command does with much data, in processes that are started for it."""
    assert not examine(folder, source, partial(in_processes, workers=workers)).faults


def command(folder: Path) -> None:
    """The whole command."""
    subprocess.run([sys.executable, "-m", "shards", "verify", str(folder)], check=True, capture_output=True)


def drop(files: list[Path]) -> bool:
    """Ask the system to forget the files' pages; whether it can be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.sync()
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def main() -> None:
    """Measure, print a table, write JSON."""
    from data import SHAPES, make_data  # with Beam, which each worker would import with this module

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(), help="on a disk")
    parser.add_argument("--megabytes", type=float, default=1000, help="of shards, a shape")
    parser.add_argument("--shapes", default="A,B,C")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=core_count())
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/verify.json"))
    options = parser.parse_args()

    rows = []
    for shape in options.shapes.split(","):
        with TemporaryDirectory(dir=options.folder) as temporary:
            data = make_data(SHAPES[shape], options.megabytes, Path(temporary), pair=False)
            for system, seconds in measure(data.folder, options).items():
                megabytes = load_manifest(data.folder).bytes / 1e6
                rate = megabytes / float(np.median(seconds))
                rows.append({"shape": shape, "system": system, "mb_per_s": rate})
                print(f"{shape}  {system:<40} {rate:>8,.0f} MB/s", flush=True)
    write_results(options.json, {"machine": describe_machine(), "command": sys.argv, "rows": rows})
    print(json.dumps(describe_machine()))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """The seconds of each system, in turns."""
    manifest, workers = load_manifest(folder), options.workers
    files = [folder / shard.file for split in manifest.splits for shard in split.shards]
    source = folder.parent / "episodes"
    systems: dict[str, Callable[[], None]] = {
        "read": lambda: read(files, workers),
        "SHA-256": lambda: hash_all(files, workers),
        "verify, one thread": lambda: verify_here(folder, None, 1),
        "verify, threads": lambda: verify_here(folder, None, workers),
        "verify, processes": lambda: verify_in_processes(folder, None, workers),
        "verify, the whole command": lambda: command(folder),
        "verify --source, processes": lambda: verify_in_processes(folder, source, workers),
        "TFRecordDataset": lambda: tensorflow_records(files, workers),
    }
    seconds: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for name, run in systems.items():
            for cold in (False, True):
                if cold and (name not in {"read", "verify, the whole command"} or not drop(files)):
                    continue
                begun = time.perf_counter()
                run()
                seconds.setdefault(name + ", cold" * cold, []).append(time.perf_counter() - begun)
    return seconds


if __name__ == "__main__":
    main()
