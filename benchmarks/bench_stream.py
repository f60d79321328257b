"""How fast shuffled float32 batches are delivered: other systems and ours side by side, on synthetic episodes.

Before anything is timed, each system has to deliver the right windows: those of brute force, each as often, but not in
the order of the episodes. Then all systems run in rotation; the median of their runs counts. A batch is (x, x), its
payload counted once; batches go to host memory, on machines with a GPU as well. MB are 10**6 bytes.
"""

import argparse
import gc
import multiprocessing
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf
from systems import BASELINE, DISTRIBUTED, SYSTEMS, UNCHECKED, Batches, ours

from data import SHAPES, Data, make_data, window_bytes
from machine import describe_machine, resident_memory, write_results
from shards import load_manifest

_CHECK_MEGABYTES = 4
_CHECK_SECONDS = 20.0  # what a slow system has delivered by then is checked
_WARM_UP = 0.5  # of the measured seconds


@dataclass(frozen=True)
class Row:
    """The median speed of one system at one shape; `ratio` is to the baseline, `runs` are windows per second."""

    shape: str
    system: str
    windows_per_s: float
    mb_per_s: float
    ratio: float | None
    runs: list[float]


@dataclass(frozen=True)
class Alone:
    """Our reader in a fresh process: seconds from `load` to the first batch, and by how much memory grew in an epoch.

    Memory is resident, in MB, the largest seen after any batch; None where there is no /proc.
    """

    shape: str
    first_batch_s: float
    own_mb: float | None


def check(name: str, data: Data) -> str:
    """Say how much of an epoch was compared; SystemExit if a system does not deliver the windows of `data`."""
    expected, delivered, whole = window_bytes(data), [], True
    deadline = time.perf_counter() + _CHECK_SECONDS
    for batch in SYSTEMS[name](data):
        x, y = (np.concatenate(replica_parts(part)) for part in (batch if data.pair else (batch, batch)))
        if x.dtype != np.float32 or x.shape[1:] != (data.shape.length,) or x.tobytes() != y.tobytes():
            raise SystemExit(f"{name} delivers {x.dtype} of shape {x.shape}, or a y that is not x")
        delivered += [window.tobytes() for window in x]
        if time.perf_counter() > deadline:
            whole = len(delivered) >= expected.total()
            break
    got = type(expected)(delivered)
    if data.strategy is not None:  # replicas get equal parts: the last batch is filled up with windows again
        got = got & expected if got.total() - expected.total() < data.shape.batch else got
    if not (got == expected if whole else got <= expected):
        raise SystemExit(f"{name} delivers other windows: {len(delivered)}, where there are {expected.total()}")
    if all(a == b for a, b in zip(delivered, expected, strict=False)):
        raise SystemExit(f"{name} does not shuffle")
    return "all windows" if whole else f"the first {len(delivered)} windows"


def replica_parts(batch: Any) -> list[np.ndarray]:
    """The arrays of a batch that replicas may share."""
    return [np.asarray(part) for part in getattr(batch, "values", [batch])]


def windows_per_second(batches: Batches, seconds: float) -> float:
    """Take whole batches, after a warm-up, until `seconds` have passed; a new epoch begins where one ends."""
    gc.collect()
    stream = _endless(batches)
    _take(stream, _WARM_UP * seconds)
    windows, elapsed = _take(stream, seconds)
    stream.close()
    return windows / elapsed


def measure(shape: str, names: list[str], data: Data, seconds: float, repeats: int) -> list[Row]:
    """All systems once, then again, `repeats` times."""
    runs: dict[str, list[float]] = {name: [] for name in names}
    batches = {name: SYSTEMS[name](data) for name in names}
    for repeat in range(repeats):
        for name in names:
            runs[name].append(windows_per_second(batches[name], seconds))
            _say(f"{shape} run {repeat + 1}: {name} {runs[name][-1]:,.0f} windows/s")
    medians = {name: statistics.median(runs[name]) for name in names}
    base = medians.get(BASELINE)
    return [
        Row(shape, name, median, median * data.shape.window_bytes / 1e6, base and median / base, runs[name])
        for name, median in medians.items()
    ]


def measure_alone(shape: str, data: Data) -> Alone:
    """What our reader takes to start and to run, in this process, in which nothing else should have run."""
    tf.reduce_sum(tf.zeros(1))  # TensorFlow starts
    before = resident_memory()
    start = time.perf_counter()
    batches = iter(ours(data))
    next(batches)
    first_batch = time.perf_counter() - start
    seen = [resident_memory(), *(resident_memory() for _ in batches)]
    if before is None:
        return Alone(shape, first_batch, None)
    return Alone(shape, first_batch, max(memory for memory in seen if memory is not None) - before)


def run_shape(shape: str, options: argparse.Namespace, strategy: Any) -> tuple[list[Row], Alone | None]:
    """Check and measure everything at one shape."""
    pair = options.targets == "same"
    with tempfile.TemporaryDirectory(prefix="bench-stream-", dir=options.folder) as folder:
        small = make_data(SHAPES[shape], _CHECK_MEGABYTES, Path(folder, "small"), pair)
        small = replace(small, strategy=strategy)
        for name in options.systems:
            if name not in UNCHECKED:
                _say(f"{shape} check: {name} {check(name, small)}")
        data = make_data(SHAPES[shape], options.megabytes, Path(folder, "data"), pair)
        data = replace(data, strategy=strategy)
        alone = None
        if "ours" in options.systems and strategy is None:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                alone = process.submit(measure_alone, shape, replace(data, episodes=())).result()
        rows = measure(shape, options.systems, data, options.seconds, options.repeats)
        print(_table(shape, rows, alone, data), flush=True)
    return rows, alone


def main() -> None:
    """Run the shapes that were asked for, print their tables and write the JSON."""
    options = _parse_arguments()
    strategy = _replicas(options.replicas)
    results = [run_shape(shape, options, strategy) for shape in options.shapes]
    document = {
        "machine": describe_machine(),
        "versions": {name: version(name) for name in ("episode-windows", "tensorflow-datasets")},
        "command": shlex.join(["python", "benchmarks/bench_stream.py", *sys.argv[1:]]),
        "rows": [asdict(row) for rows, _ in results for row in rows],
        "ours": [asdict(alone) for _, alone in results if alone is not None],
    }
    write_results(options.json, document)


def _parse_arguments() -> argparse.Namespace:
    def names_of(known: dict[str, Any]) -> Any:
        def parse(text: str) -> list[str]:
            names = text.split(",")
            if unknown := [name for name in names if name not in known]:
                raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
            return names

        return parse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--shapes", type=names_of(SHAPES), default=",".join(SHAPES))
    parser.add_argument("--systems", type=names_of(SYSTEMS), default=",".join(SYSTEMS))
    parser.add_argument("--seconds", type=float, default=3, help="of each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each system")
    parser.add_argument("--megabytes", type=float, default=1000, help="of shards at each shape")
    parser.add_argument("--replicas", type=int, default=1, help="logical CPU devices of a MirroredStrategy")
    parser.add_argument("--targets", choices=["same", "none"], default="same", help="batches are (x, x) or x")
    parser.add_argument(
        "--folder", type=Path, default=tempfile.gettempdir(), help="where the data are made, and removed at the end"
    )
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/stream.json"), help="results")
    options = parser.parse_args()
    if options.replicas > 1:
        options.systems = [name for name in options.systems if name in DISTRIBUTED]
    return options


def _replicas(count: int) -> tf.distribute.Strategy | None:
    if count == 1:
        return None
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(count)])


def _size(batch: Any) -> int:
    return sum(len(part) for part in getattr(batch, "values", [batch]))


def _endless(batches: Batches) -> Iterator[Any]:
    while True:
        yield from batches


def _take(stream: Iterator[Any], seconds: float) -> tuple[int, float]:
    """(windows, seconds) of the batches that come until `seconds` have passed, one at least."""
    windows, start, elapsed = 0, time.perf_counter(), 0.0
    for batch in stream:
        windows += _size(batch[0] if isinstance(batch, tuple) else batch)
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            break
    return windows, elapsed


def _table(shape: str, rows: list[Row], alone: Alone | None, data: Data) -> str:
    at, bytes_of_shards = data.shape, load_manifest(data.folder).bytes
    lines = [
        f"\nShape {shape}: length {at.length}, shift {at.shift}, batch {at.batch};"
        f" {data.windows:,} windows, {bytes_of_shards / 1e6:,.0f} MB of shards",
        f"{'system':<14}{'windows/s':>12}{'MB/s':>10}{'ratio':>8}",
    ]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        what = (SYSTEMS[row.system].__doc__ or "").rstrip(".")
        lines.append(f"{row.system:<14}{row.windows_per_s:>12,.0f}{row.mb_per_s:>10,.1f}{ratio:>8}  {what}")
    if alone is not None:
        lines.append(f"ours: {alone.first_batch_s:.2f} s from load to the first batch{_memory(alone)}")
    return "\n".join(lines)


def _memory(alone: Alone) -> str:
    if alone.own_mb is None:
        return ""
    return f"; at most {alone.own_mb:,.0f} MB of memory in an epoch"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
