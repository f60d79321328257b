"""What grows with the episodes and the shards of a dataset, and what does not; and what more workers would give.

Three tables. *Planned*: headers are synthetic and no shard is written, so the files are neither listed nor opened; from
the bytes of headers to all that is staged for the workers, then what a reader of the dataset loads. Each number of
episodes has processes of its own, whose peaks count. *Built*: real builds with one worker and two, and one of many
small shards, for what a shard costs whatever its size. *Simulated*: the time of a large build with more workers than
there are cores here, by the sum

    start + plan + staging + shards / workers * one shard + shards * publishing one,

each term of which was measured above. It assumes that the storage serves all workers alike, and leaves out how long
other machines take to start. MB are 10**6 bytes.
"""

import argparse
import json
import math
import multiprocessing
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_build import SHAPES, STEPS, make_episodes
from bench_plan import headers, plan_options

from machine import describe_machine, write_results
from pipeline.episodes import tabulate
from pipeline.inputs import EpisodeFile
from pipeline.job import plan_episodes
from pipeline.staging import stage_plan
from shards import open_dataset
from shards.episode_table import read_episodes
from shards.files import FileState
from shards.manifest_file import load_manifest

_WORKERS = (1, 2, 4, 8, 16, 32, 64, 256, 1000)
_SMALL_SHARDS = 2000


@dataclass(frozen=True)
class Planned:
    """Seconds, peaks of resident memory in MB, and bytes, of so many episodes in so many shards."""

    episodes: int
    shards: int
    plan_s: float
    stage_s: float
    plan_peak_mb: float
    task_bytes: int  # of the largest
    tasks_bytes: int
    places_bytes: int
    graph_bytes: int
    manifest_bytes: int
    episodes_bytes: int
    manifest_s: float
    open_s: float
    read_peak_mb: float
    rows_s: float
    rows_peak_mb: float


def peak_mb() -> float:
    """The peak of this process's resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure_plan(episodes: int, shards: int | None, folder: str) -> dict[str, Any]:
    """Plan and stage, in a process in which nothing else has run."""
    steps = np.random.default_rng(0).integers(100, 2000, episodes)
    begun = time.perf_counter()
    files = [
        EpisodeFile("/data/", f"robot/{i // 1000:05d}/episode_{i:09d}.npy", FileState(0, 0)) for i in range(episodes)
    ]
    table = tabulate(files, headers(steps))
    del files  # as the job does
    options = plan_options(folder)
    if shards is not None:
        options = replace(
            options, num_shards={"train": shards * 8 // 10, "validation": shards // 10, "test": shards // 10}
        )
    plan = plan_episodes(options, table)
    assert plan.manifest.source.episodes == episodes
    planned = time.perf_counter()
    stage_plan(plan)
    staged, peak = time.perf_counter(), peak_mb()
    staging, output = Path(plan.staging), Path(plan.output)
    sizes = {file.name: file.stat().st_size for file in staging.iterdir()}
    (staging / "draft.json").rename(output / "manifest.json")  # what a reader finds; its shards are holes
    (staging / "episodes.csv").rename(output / "episodes.csv")
    for split in plan.manifest.splits:
        for shard in split.shards:
            with (output / shard.file).open("wb") as file:
                file.truncate(shard.bytes)
    return {
        "shards": sum(split.shards for split in plan.splits),
        "plan_s": planned - begun,
        "stage_s": staged - planned,
        "plan_peak_mb": peak,
        "task_bytes": max(size for _, size in json.loads((staging / "tasks.index.json").read_bytes())),
        "tasks_bytes": sizes["tasks.jsonl"],
        "places_bytes": sizes["tasks.index.json"],
        "graph_bytes": graph_bytes(plan),
        "manifest_bytes": sizes["draft.json"],
        "episodes_bytes": sizes["episodes.csv"],
    }


def graph_bytes(plan: Any) -> int:
    """The bytes of the job's graph, as a runner is given it."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from pipeline.transforms import write_dataset

    pipeline = beam.Pipeline(options=PipelineOptions([]))
    write_dataset(pipeline, plan.recipe, plan.output, plan.manifest.fingerprint)
    return len(pipeline.to_runner_api().SerializeToString())


def measure_reading(folder: str) -> dict[str, Any]:
    """What a process holds that opens the dataset, and then asks for its episodes."""
    begun = time.perf_counter()
    manifest = load_manifest(folder)
    loaded = time.perf_counter()
    windows = open_dataset(folder)["train"]
    opened, peak = time.perf_counter(), peak_mb()
    assert len(windows) == manifest.split("train").windows
    asked = time.perf_counter()
    read_episodes(Path(folder), manifest)
    return {
        "manifest_s": loaded - begun,
        "open_s": opened - loaded,
        "read_peak_mb": peak,
        "rows_s": time.perf_counter() - asked,
        "rows_peak_mb": peak_mb(),
    }


def alone(function: Any, *arguments: Any) -> Any:
    """Call a function in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


@dataclass(frozen=True)
class Built:
    """Seconds of real builds, and what they say of each term of the simulation."""

    megabytes: float
    shards: int
    one_worker_s: float
    two_workers_s: float
    start_s: float
    shard_s: float
    publish_s: float


def build(source: Path, output: Path, shape: tuple[int, int], *flags: str) -> float:
    """Seconds of a build as a command."""
    command = [sys.executable, "-m", "pipeline", "build", "--input", str(source), "--output", str(output)]
    command += ["--window_length", str(shape[0]), "--shift", str(shape[1]), "--overwrite", *flags]
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.perf_counter() - begun


def measure_builds(folder: Path, megabytes: int, repeats: int) -> Built:
    """Builds of shape B, in turns, and one of 2,000 small shards."""
    length, shift = SHAPES["B"]
    make_episodes(folder / "in", max(8, int(megabytes * 1e6 / (length * 4) * shift / STEPS)))
    make_episodes(folder / "tiny", 1)
    runs: dict[str, list[float]] = {"tiny": [], "1": [], "2": []}
    for _ in range(repeats):
        runs["tiny"].append(build(folder / "tiny", folder / "tiny_out", SHAPES["B"]))
        for workers in ("1", "2"):
            runs[workers].append(build(folder / "in", folder / "out", SHAPES["B"], "--workers", workers))
    medians = {name: statistics.median(seconds) for name, seconds in runs.items()}
    manifest = load_manifest(folder / "out")
    shards = len(manifest.split("train").shards)
    flags = ["--num_shards", str(_SMALL_SHARDS), "--workers", "1", "--report", str(folder / "report.json")]
    build(folder / "in", folder / "out", (length, length), *flags)
    report = json.loads((folder / "report.json").read_text())
    publish = report["stages"]["publish"]["milliseconds"]
    return Built(
        megabytes=manifest.bytes / 1e6,
        shards=shards,
        one_worker_s=medians["1"],
        two_workers_s=medians["2"],
        start_s=medians["tiny"],
        shard_s=(medians["1"] - medians["tiny"]) / shards,
        publish_s=publish / 1e3 / _SMALL_SHARDS,
    )


def simulate(planned: Planned, built: Built, workers: int) -> float:
    """Seconds of a build of a planned dataset with so many workers."""
    serial = built.start_s + planned.plan_s + planned.stage_s + planned.shards * built.publish_s
    return serial + math.ceil(planned.shards / workers) * built.shard_s


def main() -> None:
    """Measure, print the tables and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=6, help="plan up to 10**MOST episodes; 7 takes some 10 minutes")
    parser.add_argument("--megabytes", type=int, default=2000, help="of shards of a real build; 0 leaves builds out")
    parser.add_argument("--repeats", type=int, default=3, help="of each real build")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where files are made")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/scale.json"), help="results")
    options = parser.parse_args()
    points: list[tuple[int, int | None]] = [(10**power, None) for power in range(3, options.most + 1)]
    points.append((min(10**6, 10**options.most), min(10**5, 10 ** (options.most - 1))))
    rows = []
    print(" episodes  shards plan s stage s peak MB |   task  tasks MB places MB graph manifest MB csv MB |", end="")
    print(" manifest s open s peak MB rows s peak MB")
    for episodes, shards in points:
        with tempfile.TemporaryDirectory(prefix="bench-scale-", dir=options.folder) as folder:
            planned = alone(measure_plan, episodes, shards, folder)
            row = Planned(episodes, **planned, **alone(measure_reading, folder + "/out"))
        rows.append(row)
        print(
            f"{row.episodes:>9,}{row.shards:>8,}{row.plan_s:>7.2f}{row.stage_s:>8.2f}{row.plan_peak_mb:>8,.0f} |"
            f"{row.task_bytes:>7,}{row.tasks_bytes / 1e6:>10.1f}{row.places_bytes / 1e6:>10.2f}{row.graph_bytes:>6}"
            f"{row.manifest_bytes / 1e6:>12.2f}{row.episodes_bytes / 1e6:>7.1f} |{row.manifest_s:>11.2f}"
            f"{row.open_s:>7.2f}{row.read_peak_mb:>8,.0f}{row.rows_s:>7.2f}{row.rows_peak_mb:>8,.0f}",
            flush=True,
        )
    built, simulated = None, {}
    if options.megabytes:
        with tempfile.TemporaryDirectory(prefix="bench-scale-", dir=options.folder) as folder:
            built = measure_builds(Path(folder), options.megabytes, options.repeats)
        print(
            f"{built.megabytes:,.0f} MB in {built.shards} shards: one worker {built.one_worker_s:.1f} s, two"
            f" {built.two_workers_s:.1f} s; start {built.start_s:.2f} s, a shard {built.shard_s:.2f} s, publishing one"
            f" {built.publish_s * 1e3:.2f} ms"
        )
        large = rows[-2]
        simulated = {workers: simulate(large, built, workers) for workers in _WORKERS}
        print(f"simulated, {large.episodes:,} episodes in {large.shards:,} shards of 128 MiB:")
        for workers, seconds in simulated.items():
            print(f"{workers:>6} workers {seconds:>8,.0f} s {simulated[1] / seconds:>6.1f} times one", flush=True)
    document = {
        "machine": describe_machine(),
        "command": shlex.join(["python", "benchmarks/bench_scale.py", *sys.argv[1:]]),
        "planned": [asdict(row) for row in rows],
        "built": None if built is None else asdict(built),
        "simulated": simulated,
    }
    write_results(options.json, document)


if __name__ == "__main__":
    main()
