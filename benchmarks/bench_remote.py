"""The stream from an object store, beside TensorFlow's own readers of it, a cache, and local shards.

    python benchmarks/bench_remote.py --delay 0.05

The store is the tests' emulator of Cloud Storage on loopback, whose answers come `--delay` seconds late, as those
over a network do; it is one process in Python, slower than a real one. Each system reads an epoch of shape B in a
process of its own. MB/s are those of the windows delivered, from the call of `load` on.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from data import SHAPES, make_data
from machine import describe_machine, write_results

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from object_stores import gcs_emulator  # noqa: E402 it is among the tests

LOAD = """
import json, sys, time
import numpy as np
{first}
from reader import load
begun, windows, first = time.perf_counter(), 0, None
for batch in load({place!r}, batch_size=256, seed=1{more}):
    first = first or time.perf_counter() - begun
    windows += len(batch["window"])
print(json.dumps([windows, time.perf_counter() - begun, first]))
"""
TEXTBOOK = """
import json, sys, time
import tensorflow as tf
from shards import load_manifest
length = load_manifest({local!r}).window.length
begun, windows, first = time.perf_counter(), 0, None
features = {{"window": tf.io.FixedLenFeature([length], tf.float32)}}
names = tf.io.gfile.glob({place!r} + "/*.tfrecord*")
dataset = tf.data.Dataset.from_tensor_slices(names)
dataset = dataset.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE).shuffle(8192).batch(256)
for batch in dataset.map(lambda records: tf.io.parse_example(records, features)).prefetch(tf.data.AUTOTUNE):
    first = first or time.perf_counter() - begun
    windows += len(batch["window"])
print(json.dumps([windows, time.perf_counter() - begun, first]))
"""


def main() -> None:
    """Run the systems one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds that each answer takes")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/remote.json"))
    options = parser.parse_args()
    shape, rows = SHAPES["B"], []
    with TemporaryDirectory() as folder:
        store, cache = Path(folder, "store"), f", cache_dir={str(Path(folder, 'cache'))!r}"
        store.mkdir()
        data = make_data(shape, options.megabytes, Path(folder), pair=False)
        with gcs_emulator(store, options.delay) as gcs:
            shards = sorted(data.folder.glob("*.tfrecord*"))
            for file in data.folder.iterdir():
                gcs.put(f"out/{file.name}", file.read_bytes())
            url = "gs://bucket/out"
            after_tensorflow = "import tensorflow"  # so that gcsfs reads
            systems = {
                "reader.load, by TensorFlow's file system": (LOAD.format(first="", place=url, more=""), gcs.tensorflow),
                "reader.load, by gcsfs": (LOAD.format(first=after_tensorflow, place=url, more=""), gcs.client),
                "textbook TFRecordDataset": (TEXTBOOK.format(place=url, local=str(data.folder)), gcs.tensorflow),
                "reader.load, cache_dir, copying": (LOAD.format(first="", place=url, more=cache), gcs.tensorflow),
                "reader.load, cache_dir, copied": (LOAD.format(first="", place=url, more=cache), gcs.tensorflow),
                "reader.load, local shards": (LOAD.format(first="", place=str(data.folder), more=""), {}),
            }
            for name, (code, environment) in systems.items():
                before = len(gcs.requests())
                known = {**os.environ, **environment, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
                done = subprocess.run(
                    [sys.executable, "-c", code], env=known, check=True, stdout=subprocess.PIPE, text=True
                )
                windows, seconds, first = json.loads(done.stdout.splitlines()[-1])
                asked = [each for each in gcs.requests()[before:] if "tfrecord" in each]
                row = {
                    "system": name,
                    "mb_per_second": windows * shape.window_bytes / seconds / 1e6,
                    "seconds_to_first_batch": first,
                    "requests_per_shard": len(asked) / len(shards),
                }
                rows.append(row)
                print(
                    f"{name:45} {row['mb_per_second']:8.0f} MB/s {first:8.2f} s to the first batch"
                    f" {row['requests_per_shard']:6.1f} requests a shard",
                    flush=True,
                )
    write_results(
        options.output, {"machine": describe_machine(), "options": vars(options) | {"output": ""}, "rows": rows}
    )


if __name__ == "__main__":
    main()
