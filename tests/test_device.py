"""Prefetching onto a device, shown with two logical CPU devices in a process of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from conftest import BuildHere, SaveEpisodes

CODE = """
import sys
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from reader import load
from reader.device import only_gpu, prefetch

assert only_gpu() is None
host = load(sys.argv[1], batch_size=4, targets="same", provenance=False)
device = prefetch(host, "/device:CPU:1")
print(int(host.cardinality()), int(device.cardinality()), host.element_spec == device.element_spec)
for _ in range(2):
    devices = {tensor.device.rpartition("/")[2] for batch in device for tensor in batch}
    windows = sum(len(x) for x, _ in device)
    print(devices, windows)
whole = prefetch(load(sys.argv[2], batch_size=4, normalize=True), "/device:CPU:1")
devices = {tensor.device.rpartition("/")[2] for batch in whole for tensor in batch.values()}
print(sorted(whole.element_spec), devices, sum(int(batch["mask"].numpy().sum()) for batch in whole))
"""


def test_batches_are_prefetched_onto_the_named_device(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.arange(42, dtype=np.float32)])
    for tail in ("drop", "pad"):
        build_here(inputs, tmp_path / tail, window_length=4, shift=3, tail=tail)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "drop"), str(tmp_path / "pad")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.splitlines() == [
        "4 4 True",
        "{'device:CPU:1'} 13",
        "{'device:CPU:1'} 13",
        "['mask', 'valid', 'window'] {'device:CPU:1'} 55",
    ], done.stderr
