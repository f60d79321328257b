"""Shards that are damaged before or while they are read: an error names them, and the interpreter never crashes."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_damage import WAYS

import reader.raw_steps
from conftest import BuildHere, SaveEpisodes
from reader import load
from shards import ShardError, open_dataset
from shards.shard_file import read_piece

CHANGED = "shard SHARD has changed since the dataset was opened; open it again"
GONE = "shard SHARD cannot be read: No such file or directory; copy the dataset again"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere) -> Path:
    """Three datasets, each called d, and others of the same sizes that could be put in their place."""
    folder = tmp_path_factory.mktemp("damage")
    shapes: dict[str, dict[str, Any]] = {
        "small": {"window_length": 8, "shift": 32},
        "shared": {"window_length": 8, "shift": 16, "windows_per_record": 4},
        "large": {"window_length": 5000, "shift": 400},
    }
    for kind, how in shapes.items():
        for below, first in ((folder, 0), (folder / "other", 1_000_000)):
            inputs = save_episodes(below / "in" / kind, [np.arange(first, first + 80_000, dtype=np.int32)])
            build_here(inputs, below / kind / "d", num_shards=12, **how)
    return folder


def run(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A Python process that ends by itself, without a signal."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})}
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done


@pytest.mark.parametrize("tensorflow", [False, True], ids=["numpy", "load"])
def test_damage_at_any_moment_is_an_error_or_does_no_harm(root: Path, tensorflow: bool) -> None:
    names = [name for name in WAYS if name.startswith("numpy") != tensorflow]
    ends: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in run(str(Path(__file__).parent / "on_damage.py"), str(root), *names).stdout.splitlines():
        name, damage, end = json.loads(line)
        ends[name, damage].add(end)

    assert set(ends) == {(name, damage) for name in names for damage in ("truncate", "delete", "replace", "overwrite")}
    for (name, damage), found in ends.items():
        if name == "unshuffled":  # which all is in memory after the first epoch
            assert found <= {"right", CHANGED, GONE}, (name, damage)
        elif name in {"shuffled", "shared"}:  # pieces, whose files are opened for each
            assert found <= ({GONE} if damage == "delete" else {CHANGED}), (name, damage)
        elif damage in {"truncate", "overwrite"}:
            assert found == {CHANGED}, (name, damage)
        else:  # a file that is open is read on as it was
            assert found <= {"right", CHANGED, GONE}, (name, damage)


TRAIN = """
import os, sys
import keras
from reader import load

dataset = load(sys.argv[1], batch_size=16, pool=1, epochs=None, targets=1)
model = keras.Sequential([keras.layers.Input((7,)), keras.layers.Dense(1)])
model.compile(loss="mse")

def damage(batch, logs=None):
    if batch == 3:
        os.truncate(sys.argv[2], 5000)

try:
    model.fit(dataset, steps_per_epoch=10_000, verbose=0, shuffle=False, callbacks=[
        keras.callbacks.LambdaCallback(on_train_batch_end=damage)])
except Exception as error:
    print(type(error).__name__, error)
for batch in dataset:
    pass
"""


def test_the_user_sees_the_shard_and_the_process_ends(root: Path, tmp_path: Path) -> None:
    folder = copied(root / "small" / "d", tmp_path)
    shard = folder / "d-train.tfrecord-00004-of-00012"
    done = run("-c", TRAIN, str(folder), str(shard), code=1)
    text = f"shard {shard} has changed since the dataset was opened; open it again"
    assert done.stdout.startswith("UnknownError")
    assert f"ShardError: {text}" in done.stdout
    assert f"\nshards.errors.ShardError: {text}\n" in done.stderr  # which TensorFlow goes on to log


REPLICAS = """
import os, sys
import tensorflow as tf
from reader import load

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
dataset = load(sys.argv[1], batch_size=16, pool=1, epochs=None, strategy=strategy)
for step, batch in enumerate(dataset):
    if step == 3:
        os.truncate(sys.argv[2], 5000)
"""


def test_replicas_end_with_the_shard_named(root: Path, tmp_path: Path) -> None:
    folder = copied(root / "small" / "d", tmp_path)
    shard = folder / "d-train.tfrecord-00004-of-00012"
    done = run("-c", REPLICAS, str(folder), str(shard), code=1)
    assert f"ShardError: shard {shard} has changed since the dataset was opened; open it again" in done.stderr


def copied(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def flip(folder: Path, number: int) -> Path:
    """Flip a bit of a window in the middle of a shard."""
    shard = folder / f"d-train.tfrecord-{number:05d}-of-00012"
    content = bytearray(shard.read_bytes())
    layout, records = open_dataset(folder).manifest.layout, open_dataset(folder)["train"].shards[number].records
    content[records // 2 * layout.record_bytes + layout.field("window").offset] ^= 1
    shard.write_bytes(content)
    return shard


def values(folder: Path, **options: Any) -> np.ndarray:
    """All windows of the stream, in the order of their first steps."""
    batches = list(load(folder, batch_size=100, shuffle=False, **options).as_numpy_iterator())
    return np.concatenate([batch["window"] for batch in batches])


@pytest.mark.parametrize("kind", ["small", "shared", "large"])
def test_a_flipped_bit_is_found_if_asked_for(root: Path, tmp_path: Path, kind: str) -> None:
    folder = copied(root / kind / "d", tmp_path)
    right = values(folder, verify=True)
    shard = flip(folder, 7)
    with pytest.raises(ShardError) as caught:
        load(folder, batch_size=16, verify=True)
    assert str(caught.value) == (
        f"shard {shard} is damaged: its SHA-256 is not the manifest's; copy or build the dataset again"
    )
    # Without it, what has the right size is delivered as it is.
    assert (values(folder) != right).sum() in ({1} if kind == "small" else range(1, 13))


def test_what_changes_after_it_was_verified_is_found(root: Path, tmp_path: Path) -> None:
    folder = copied(root / "small" / "d", tmp_path)
    dataset = load(folder, batch_size=16, verify=True)
    shard = flip(folder, 7)
    with pytest.raises(ShardError, match=f"{shard} has changed since the dataset was opened; open it again"):
        list(dataset)


def test_a_shard_whose_time_was_set_back_is_not_found(root: Path, tmp_path: Path) -> None:
    folder = copied(root / "small" / "d", tmp_path)
    windows, right = open_dataset(folder)["train"], values(folder)
    state = windows.shards[7].state
    os.utime(flip(folder, 7), ns=(0, state.modified))
    assert (np.sort(windows[:]["window"], axis=None) != np.sort(right, axis=None)).any()


def test_a_shard_that_changes_while_raw_steps_are_read_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(root / "shared" / "d", tmp_path)

    def damaged(piece: Any, into: np.ndarray) -> None:
        if "00005-of" in piece.file:
            os.truncate(piece.file, 3000)
        read_piece(piece, into)

    monkeypatch.setattr(reader.raw_steps, "read_piece", damaged)
    with pytest.raises(ShardError, match=r"00005-of-00012 has changed since the dataset was opened; open it again"):
        load(folder, batch_size=16, resident=True)
