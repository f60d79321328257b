"""The time and the memory of local builds: by Beam's running modes and the number of workers, and by what is written.

Two tables. *Modes*: the same build with one worker in the job's process, and with more, as its threads
(multi_threading) or as processes of their own (multi_processing); they take turns, medians count. *Growth*: builds of
ever more shards of 128 MiB, as they are by default. Memory in MB (10**6 bytes): the most that all processes had
together, shared pages counted once, and the most that the largest of each kind had.
"""

import argparse
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_build import SHAPES, STEPS, make_episodes
from processes import Peaks, watch_processes

from machine import describe_machine, write_results
from shards import load_manifest


@dataclass(frozen=True)
class Row:
    """One build: what it is called, seconds, and peaks of memory."""

    shape: str
    mode: str
    workers: int
    output_mb: float
    seconds: float
    total_mb: float
    launcher_mb: float
    job_mb: float
    worker_mb: float


def build(source: Path, output: Path, shape: str, *flags: str) -> tuple[float, Peaks]:
    """Seconds and memory of a build as a command."""
    length, shift = SHAPES[shape]
    command = [sys.executable, "-m", "pipeline", "build", "--input", str(source), "--output", str(output)]
    command += ["--window_length", str(length), "--shift", str(shift), "--overwrite", *flags]
    begun = time.perf_counter()
    with watch_processes(seconds=0.3) as peaks:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        seconds = time.perf_counter() - begun
    return seconds, peaks


def make_input(folder: Path, shape: str, megabytes: float) -> Path:
    """Episodes that give about so many MB of shards."""
    length, shift = SHAPES[shape]
    make_episodes(folder, max(8, int(megabytes * 1e6 / (length * 4) * shift / STEPS)))
    return folder


def as_row(shape: str, mode: str, workers: int, output: Path, runs: list[tuple[float, Peaks]]) -> Row:
    """The median time and the largest peaks of some runs, printed."""
    largest = {role: max(peaks.largest.get(role, 0.0) for _, peaks in runs) for role in ("launcher", "job", "worker")}
    row = Row(
        shape,
        mode,
        workers,
        load_manifest(output).bytes / 1e6,
        statistics.median(seconds for seconds, _ in runs),
        max(peaks.total for _, peaks in runs),
        largest["launcher"],
        largest["job"],
        largest["worker"],
    )
    print(
        f"{shape:<6}{mode:<17}{workers:>8}{row.output_mb:>9,.0f}{row.seconds:>9.1f}{row.output_mb / row.seconds:>7.0f}"
        f"{row.total_mb:>8,.0f}{row.launcher_mb:>9,.0f}{row.job_mb:>7,.0f}{row.worker_mb:>8,.0f}",
        flush=True,
    )
    return row


def compare_modes(folder: Path, shape: str, megabytes: float, most: int, repeats: int) -> list[Row]:
    """One shape with each mode and number of workers, in turns."""
    source = make_input(folder / shape, shape, megabytes)
    ways = [("in_memory", 1)]
    workers = 2
    while workers <= most:
        ways += [("multi_threading", workers), ("multi_processing", workers)]
        workers *= 2
    runs: dict[tuple[str, int], list[tuple[float, Peaks]]] = {way: [] for way in ways}
    for _ in range(repeats):
        for mode, workers in ways:
            flags = ["--workers", str(workers), "--direct_num_workers", str(workers), "--direct_running_mode", mode]
            runs[mode, workers].append(build(source, folder / "out", shape, *flags))
    return [as_row(shape, mode, workers, folder / "out", got) for (mode, workers), got in runs.items()]


def main() -> None:
    """Measure, print the tables and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="A,B,C", help="whose modes are compared; empty for none")
    parser.add_argument("--megabytes", type=float, default=2000, help="of shards, where modes are compared")
    parser.add_argument("--most", type=int, default=8, help="workers")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--growth", default="2000,4000,8000", help="MB of shards, where growth is measured")
    parser.add_argument("--workers", type=int, default=2, help="there")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where files are made")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/workers.json"), help="results")
    options = parser.parse_args()
    rows = []
    print(f"{'shape':<6}{'mode':<17}{'workers':>8}{'MB':>9}{'seconds':>9}{'MB/s':>7}{'all MB':>8}", end="")
    print(f"{'launcher':>9}{'job':>7}{'worker':>8}")
    with tempfile.TemporaryDirectory(prefix="bench-workers-", dir=options.folder) as folder:
        for shape in filter(None, options.shapes.split(",")):
            rows += compare_modes(Path(folder), shape, options.megabytes, options.most, options.repeats)
    for megabytes in map(float, filter(None, options.growth.split(","))):
        with tempfile.TemporaryDirectory(prefix="bench-workers-", dir=options.folder) as folder:
            source = make_input(Path(folder, "in"), "B", megabytes)
            got = build(source, Path(folder, "out"), "B", "--workers", str(options.workers))
            rows.append(as_row("B", "default", options.workers, Path(folder, "out"), [got]))
    command = shlex.join(["python", "benchmarks/bench_workers.py", *sys.argv[1:]])
    write_results(
        options.json, {"machine": describe_machine(), "command": command, "rows": [asdict(row) for row in rows]}
    )


if __name__ == "__main__":
    main()
