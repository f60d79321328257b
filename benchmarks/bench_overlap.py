"""Windows that overlap much, one a record and sharing records: bytes, build and stream, side by side.

The episodes are noise, 32 of about `--steps` float32 steps. Before anything is timed, both datasets have to deliver the
same windows. Streams run in rotation; the median of their runs counts. MB are 10**6 bytes.
"""

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
from bench_stream import windows_per_second

from machine import describe_machine, write_results
from pipeline import BuildOptions, build
from reader import load
from shards import open_dataset

_EPISODES = 32
_CHECKED = 2000  # windows of each split, at places all over it


@dataclass(frozen=True)
class Row:
    """One way to store the windows: sizes, and speeds of build and stream in windows a second."""

    windows_per_record: int
    input_mb: float
    output_mb: float
    ratio: float
    build_windows_per_s: float
    stream_windows_per_s: float


def main() -> None:
    """Build both, compare them, measure, print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--shift", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100_000, help="of an episode, give or take a third")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3, help="of each run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where files are made")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/overlap.json"), help="results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-overlap-", dir=options.folder) as place:
        folder = Path(place)
        input_mb = _save_episodes(folder / "in", options.steps)
        built = {how: _build(folder, how, options) for how in (1, "auto")}
        _compare(*(folder / str(how) for how in built))
        runs: dict[str, list[float]] = {str(how): [] for how in built}
        streams = {how: load(folder / how, batch_size=options.batch, targets="same") for how in runs}
        for _ in range(options.repeats):
            for how, stream in streams.items():
                runs[how].append(windows_per_second(stream, options.seconds))
        rows = []
        for how, (manifest, seconds) in built.items():
            output = manifest.bytes / 1e6
            speed, windows = statistics.median(runs[str(how)]), manifest.windows / seconds
            rows.append(Row(manifest.window.per_record, input_mb, output, output / input_mb, windows, speed))
    print(f"{'a record':>9}{'input MB':>10}{'output MB':>11}{'ratio':>8}{'build w/s':>12}{'stream w/s':>12}")
    for row in rows:
        print(
            f"{row.windows_per_record:>9,}{row.input_mb:>10,.0f}{row.output_mb:>11,.0f}{row.ratio:>8.2f}"
            f"{row.build_windows_per_s:>12,.0f}{row.stream_windows_per_s:>12,.0f}"
        )
    command = shlex.join(["python", "benchmarks/bench_overlap.py", *sys.argv[1:]])
    write_results(options.json, {"machine": describe_machine(), "command": command, "rows": list(map(asdict, rows))})


def _save_episodes(folder: Path, steps: int) -> float:
    folder.mkdir()
    random = np.random.default_rng(0)
    for i, count in enumerate(random.integers(steps * 2 // 3, steps * 4 // 3, _EPISODES).tolist()):
        np.save(folder / f"{i:02d}.npy", random.standard_normal(count, np.float32))
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def _build(folder: Path, how: "int | str", options: argparse.Namespace):
    begin = time.perf_counter()
    manifest = build(
        BuildOptions(
            inputs=(str(folder / "in"),),
            output=str(folder / str(how)),
            window_length=options.length,
            shift=options.shift,
            windows_per_record=how,
        )
    )
    return manifest, time.perf_counter() - begin


def _compare(one: Path, other: Path) -> None:
    """SystemExit unless both have the same windows, by where they are from, and the same values in some of them."""
    found = []
    for folder in (one, other):
        windows = open_dataset(folder)["train"]
        where = windows.provenance()
        order = np.lexsort((where["start"], where["episode"]))
        some = order[:: max(1, len(order) // _CHECKED)]
        found.append((where["episode"][order], where["start"][order], windows[some]["window"]))
    if not all(np.array_equal(a, b) for a, b in zip(*found, strict=True)):
        raise SystemExit("the two datasets hold different windows")


if __name__ == "__main__":
    main()
