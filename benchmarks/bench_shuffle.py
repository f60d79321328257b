"""How well the windows of a batch are mixed, beside a perfect uniform draw of as many windows of the split.

A dataset of 200 episodes, of several shapes; for pools of ever more pieces: the different episodes in a batch, the mean
distance of two of its windows of the same episode in steps, and how many pairs of them overlap. Averages of epochs;
ratios to the uniform draw.
"""

import argparse
import os
import shlex
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np

from machine import describe_machine, write_results
from pipeline import BuildOptions, build
from reader import load
from shards.pieces import PIECE_BYTES


@dataclass(frozen=True)
class Mix:
    """Of a batch, on average: different episodes, steps between windows of one episode, pairs that overlap."""

    episodes: float
    apart: float
    overlapping: float


def mix_of(batches: list[tuple[np.ndarray, np.ndarray]], length: int) -> Mix:
    """The mix of batches, each given as (episode, start) of its windows."""
    found = []
    for episode, start in batches:
        first, second = np.triu_indices(len(start), 1)
        same = episode[first] == episode[second]
        apart = np.abs(start[first] - start[second])[same]
        found.append((len(np.unique(episode)), apart.mean() if len(apart) else np.nan, (apart < length).sum()))
    return Mix(*np.nanmean(found, axis=0).tolist())


def uniform(episode: np.ndarray, start: np.ndarray, batch: int, length: int, draws: int) -> Mix:
    """The mix of batches drawn without replacement from all windows."""
    random = np.random.default_rng(0)
    chosen = (random.choice(len(start), batch, replace=False) for _ in range(draws))
    return mix_of([(episode[places], start[places]) for places in chosen], length)


def main() -> None:
    """Build, read whole epochs, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000, help="of shards where each window has its own record")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--pools", default="1,4,16,64")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/shuffle.json"), help="results")
    options = parser.parse_args()
    rows = []
    print(f"{'windows':<22}{'pool':>6}{'of':>5}{'episodes':>16}{'apart':>18}{'overlapping':>17}")
    for length, shift, per_record in ((64, 8, 1), (1024, 256, 1), (1024, 8, "auto")):
        with tempfile.TemporaryDirectory(prefix="bench-shuffle-") as root:
            steps = int(options.megabytes * 1e6 / 200 / (4 * length) * shift) + length
            (Path(root) / "in").mkdir()
            for i in range(200):
                np.save(Path(root, "in", f"{i:03d}.npy"), np.zeros(steps, np.float32))
            folder = Path(root, "out")
            build(
                BuildOptions(
                    inputs=(str(Path(root, "in")),),
                    output=str(folder),
                    window_length=length,
                    shift=shift,
                    windows_per_record=per_record,
                    shard_size=2**25,
                )
            )
            for pool in map(int, options.pools.split(",")):
                stream = load(
                    folder, batch_size=options.batch, provenance=True, pool=pool, epochs=options.epochs,
                    remainder="drop", targets=lambda batch: (batch["episode"], batch["start"]),
                )  # fmt: skip
                batches = list(stream.as_numpy_iterator())
                found = mix_of(batches[:: max(1, len(batches) // 2000)], length)
                episode, start = (np.concatenate(parts) for parts in zip(*batches, strict=True))
                best = uniform(episode, start, options.batch, length, 500)
                pieces = sum(-(-file.stat().st_size // PIECE_BYTES) for file in folder.glob("*.tfrecord*"))
                rows.append({"length": length, "shift": shift, "per_record": per_record, "pool": pool,
                             "found": asdict(found), "uniform": asdict(best)})  # fmt: skip
                cells = [
                    f"{value:,.1f} ({value / ideal:.3f})" if ideal else f"{value:,.1f}"
                    for value, ideal in zip(asdict(found).values(), asdict(best).values(), strict=True)
                ]
                what = f"{length} x {shift}" + (", shared" if per_record == "auto" else "")
                print(f"{what:<22}{pool:>6}{pieces:>5}{cells[0]:>16}{cells[1]:>18}{cells[2]:>17}", flush=True)
    command = shlex.join(["python", "benchmarks/bench_shuffle.py", *sys.argv[1:]])
    write_results(options.json, {"machine": describe_machine(), "command": command, "rows": rows})


if __name__ == "__main__":
    main()
