"""How fast a build is, beside the textbook Beam job and `dd`, in one run.

    python benchmarks/bench_build.py --fast /dev/shm --disk .

Shapes are those of bench_stream.py. The textbook job is what a tutorial writes: FlatMap of an episode to its windows,
`tf.train.Example`, Reshuffle, WriteToTFRecord; it runs on a part of the episodes, which does not change its speed.
All times are of whole commands, process start and fsync included.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from machine import describe_machine, write_results
from shards import load_manifest

SHAPES = {"A": (64, 1), "B": (1024, 256), "C": (16384, 4096)}  # length, shift
STEPS = 2**18  # of an episode


def make_episodes(folder: Path, count: int) -> None:
    """`count` float32 episodes of about 1 MiB."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for i in range(count):
        np.save(folder / f"{i:05d}.npy", random.standard_normal(STEPS + i % 7, dtype=np.float32))


def seconds_of(command: list[str]) -> float:
    """How long a command takes."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def build(episodes: Path, output: Path, shape: str, workers: int) -> tuple[float, int]:
    """(seconds, windows) of our build."""
    length, shift = SHAPES[shape]
    command = [sys.executable, "-m", "pipeline", "build", "--input", str(episodes), "--output", str(output)]
    command += ["--window_length", str(length), "--shift", str(shift), "--workers", str(workers), "--overwrite"]
    return seconds_of(command), load_manifest(output).windows


def textbook(episodes: Path, output: Path, shape: str, workers: int) -> tuple[float, int]:
    """(seconds, windows) of the textbook job, in a process of its own."""
    output.mkdir(exist_ok=True)
    seconds = seconds_of([sys.executable, __file__, "--textbook", str(episodes), str(output), shape, str(workers)])
    length, shift = SHAPES[shape]
    windows = sum((np.load(file, mmap_mode="r").shape[0] - length) // shift + 1 for file in episodes.glob("*.npy"))
    return seconds, windows


def run_textbook(episodes: str, output: str, shape: str, workers: str) -> None:
    """The textbook Beam job."""
    import apache_beam as beam
    import tensorflow as tf

    length, shift = SHAPES[shape]

    def windows_of(path: str) -> Iterator[np.ndarray]:
        episode = np.load(path)
        for start in range(0, len(episode) - length + 1, shift):
            yield episode[start : start + length]

    def example_of(window: np.ndarray) -> bytes:
        value = tf.train.Feature(float_list=tf.train.FloatList(value=window))
        return tf.train.Example(features=tf.train.Features(feature={"window": value})).SerializeToString()

    mode = "multi_processing" if int(workers) > 1 else "in_memory"
    options = [f"--direct_num_workers={workers}", f"--direct_running_mode={mode}", "--runner=FnApiRunner"]
    with beam.Pipeline(argv=options) as pipeline:
        (
            pipeline
            | beam.Create(sorted(map(str, Path(episodes).glob("*.npy"))))
            | beam.FlatMap(windows_of)
            | beam.Map(example_of)
            | beam.Reshuffle()
            | beam.io.WriteToTFRecord(f"{output}/textbook", file_name_suffix=".tfrecord")
        )


def dd(folder: Path, megabytes: int) -> float:
    """MB/s at which `dd` writes zeros to a file, fsync included."""
    file = folder / "dd"
    command = ["dd", "if=/dev/zero", f"of={file}", "bs=1000000", f"count={megabytes}", "conv=fsync"]
    seconds = seconds_of(command)
    file.unlink()
    return megabytes / seconds


def main() -> None:
    """Measure, print a table, write JSON."""
    if sys.argv[1:2] == ["--textbook"]:
        run_textbook(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", type=Path, default=Path("/dev/shm"), help="a folder in memory")
    parser.add_argument("--disk", type=Path, default=Path(), help="a folder on a disk")
    parser.add_argument("--megabytes", type=int, default=6000, help="of shards, a build")
    parser.add_argument("--shapes", default="A,B,C")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/build.json"))
    options = parser.parse_args()

    rows = []
    for shape in options.shapes.split(","):
        samples: dict[str, list[tuple[float, float]]] = {}
        for _ in range(options.repeats):
            for place in ("fast", "disk"):
                for system, windows_per_s, mb_per_s in measure(shape, getattr(options, place), place, options):
                    samples.setdefault(system, []).append((windows_per_s, mb_per_s))
        for system, got in samples.items():
            windows_per_s, mb_per_s = np.median(np.array(got), axis=0).tolist()
            rows.append({"shape": shape, "system": system, "windows_per_s": windows_per_s, "mb_per_s": mb_per_s})
            print(f"{shape}  {system:<40} {windows_per_s:>12,.0f} windows/s {mb_per_s:>8,.0f} MB/s", flush=True)
    write_results(options.json, {"machine": describe_machine(), "command": sys.argv, "rows": rows})
    print(json.dumps(describe_machine()))


def measure(shape: str, folder: Path, place: str, options: argparse.Namespace) -> Iterator[tuple[str, float, float]]:
    """(system, windows/s, MB/s of windows) of each system at one shape in one folder."""
    length, shift = SHAPES[shape]
    per_window = length * 4
    episodes = max(8, int(options.megabytes * 1e6 / per_window * shift / STEPS))
    with TemporaryDirectory(dir=folder) as temporary:
        source, part = Path(temporary, "in"), Path(temporary, "part")
        make_episodes(source, episodes)
        seconds, windows = build(source, Path(temporary, "out"), shape, options.workers)
        yield f"build, {place}", windows / seconds, windows * per_window / seconds / 1e6
    if place == "disk":
        speed = dd(folder, options.megabytes)
        yield "dd, disk", speed * 1e6 / per_window, speed
        return
    with TemporaryDirectory(dir=folder) as temporary:
        part = Path(temporary, "part")
        make_part(part, shape)
        for workers in {1, options.workers}:
            seconds, windows = textbook(part, Path(temporary, "text"), shape, workers)
            rate = windows / seconds
            yield f"textbook Beam, {workers} process(es), {place}", rate, rate * per_window / 1e6


def make_part(folder: Path, shape: str) -> None:
    """Episodes of about 60,000 windows at A and B and 6,000 at C: some 20 s of the textbook job."""
    shift = SHAPES[shape][1]
    if shape == "A":  # an episode has 262,000 windows
        folder.mkdir()
        random = np.random.default_rng(0)
        for i in range(8):
            np.save(folder / f"{i}.npy", random.standard_normal(8000, dtype=np.float32))
        return
    make_episodes(folder, (60_000 if shape == "B" else 6_000) * shift // STEPS)


if __name__ == "__main__":
    main()
