"""What planning costs as episodes grow in number, and what one huge episode costs to build.

Headers are synthetic, so that it is the plan that is timed and not the disk: from headers to all that is staged for the
workers (tasks, episodes.csv, the draft of the manifest), each number of episodes in a process of its own. The huge
episode is a sparse file of zeros, which takes no room; its dataset, one window after the other, does.
"""

import argparse
import io
import multiprocessing
import os
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from processes import watch_processes

from machine import describe_machine, write_results
from pipeline import BuildOptions, build
from pipeline.episodes import tabulate
from pipeline.inputs import EpisodeFile
from pipeline.job import plan_episodes
from pipeline.source import SourceHeader, read_source_header
from pipeline.staging import stage_plan
from shards.files import FileState


@dataclass(frozen=True)
class Plan:
    """Seconds and peak resident memory (MB, 10**6 bytes) of planning, and the bytes that are staged."""

    episodes: int
    seconds: float
    staging_seconds: float
    peak_mb: float
    staged_mb: float


@dataclass(frozen=True)
class Huge:
    """One episode: its size, the seconds of its build, and the peak of memory of all processes that it started."""

    input_mb: float
    output_mb: float
    seconds: float
    peak_mb: float
    workers: int


def measure_plan(episodes: int, folder: str) -> Plan:
    """Plan so many episodes, in this process, in which nothing else should have run."""
    steps = np.random.default_rng(0).integers(100, 2000, episodes)
    begin = time.perf_counter()
    files = [
        EpisodeFile("/data/", f"robot/{i // 1000:05d}/episode_{i:09d}.npy", FileState(0, 0)) for i in range(episodes)
    ]
    planned = plan_episodes(plan_options(folder), tabulate(files, headers(steps)))
    assert planned.manifest.source.episodes == episodes
    planned_at = time.perf_counter()
    stage_plan(planned)
    staged_at = time.perf_counter()
    staged = sum(file.stat().st_size for file in Path(planned.staging).iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return Plan(episodes, planned_at - begin, staged_at - planned_at, peak, staged / 1e6)


def plan_options(folder: str) -> BuildOptions:
    """Windows of 64 steps, 16 apart, in three splits."""
    splits = {"train": "0.8", "validation": "0.1", "test": "0.1"}
    return BuildOptions(("/data",), folder + "/out", window_length=64, shift=16, splits=splits)


def headers(steps: np.ndarray) -> Iterator[SourceHeader]:
    """The headers of (steps, 32) float32 arrays, parsed from bytes such as `np.save` writes."""
    for count in steps.tolist():
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 32), }" % count
        start = b"\x93NUMPY\x01\x00v\x00" + text.ljust(117) + b"\n"
        yield read_source_header(io.BytesIO(start), "episode.npy", len(start) + count * 32 * 4)


def measure_huge(gigabytes: float, folder: Path) -> Huge:
    """Build a dataset from one sparse file."""
    (folder / "in").mkdir()
    steps = int(gigabytes * 1e9 / 64)
    with (folder / "in" / "huge.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file,
            {"descr": "<f4", "fortran_order": False, "shape": (steps, 16)},  # 64 bytes a step
        )
        file.truncate(file.tell() + steps * 64)
    options = BuildOptions((str(folder / "in"),), str(folder / "out"), window_length=1024, shift=1024)
    begin = time.perf_counter()
    with watch_processes() as peaks:
        manifest = build(options)
    seconds, peak = time.perf_counter() - begin, peaks.total
    return Huge(steps * 64 / 1e6, manifest.bytes / 1e6, seconds, peak, os.cpu_count() or 1)


def main() -> None:
    """Measure, print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--episodes", default="1000,10000,100000,1000000")
    parser.add_argument("--gigabytes", type=float, default=20, help="of the huge episode; 0 leaves it out")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where files are made")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/plan.json"), help="results")
    options = parser.parse_args()
    plans = []
    print(f"{'episodes':>10}{'plan s':>9}{'stage s':>9}{'peak MB':>9}{'staged MB':>11}")
    for episodes in map(int, options.episodes.split(",")):
        with (
            tempfile.TemporaryDirectory(prefix="bench-plan-", dir=options.folder) as folder,
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
        ):
            plans.append(process.submit(measure_plan, episodes, folder).result())
        row = plans[-1]
        print(
            f"{row.episodes:>10,}{row.seconds:>9.2f}{row.staging_seconds:>9.2f}{row.peak_mb:>9,.0f}"
            f"{row.staged_mb:>11,.1f}",
            flush=True,
        )
    huge = None
    if options.gigabytes:
        folder = Path(tempfile.mkdtemp(prefix="bench-plan-", dir=options.folder))
        try:
            huge = measure_huge(options.gigabytes, folder)
        finally:
            shutil.rmtree(folder)
        print(
            f"one episode of {huge.input_mb:,.0f} MB: {huge.seconds:.1f} s, at most {huge.peak_mb:,.0f} MB in all"
            f" processes, {huge.workers} of them workers"
        )
    document = {
        "machine": describe_machine(),
        "command": shlex.join(["python", "benchmarks/bench_plan.py", *sys.argv[1:]]),
        "plans": [asdict(row) for row in plans],
        "huge": None if huge is None else asdict(huge),
    }
    write_results(options.json, document)


if __name__ == "__main__":
    main()
