"""Windows gathered in the memory of a device: every bit, each replica's own part, and what Keras makes of it."""

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere, SaveEpisodes
from reader.capacity import free_bytes, misfit
from reader.raw_steps import RawSteps
from reader.resident import devices_of, resident
from shards import Feature, OptionError
from shards.features import DTYPES
from shards.memory import Buffers

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
LENGTH, STEPS = 6, 60


def random_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random bits, but for bool, which has two values."""
    bits = np.random.default_rng(len(dtype)).integers(0, 256, (*shape, DTYPES[dtype].itemsize), np.uint8)
    return bits[..., 0] > 127 if dtype == "bool" else bits.view(DTYPES[dtype])[..., 0]


def random_steps(dtypes: list[str], shapes: list[tuple[int, ...]], block: int) -> tuple[RawSteps, list[Feature]]:
    first = np.arange(0, STEPS - LENGTH + 1, block)
    steps = {f"{dtype}{shape}": random_array(dtype, (STEPS, *shape)) for dtype in dtypes for shape in shapes}
    values = {dtype: random_array(dtype, first.shape) for dtype in dtypes}
    columns = [Feature(f"{dtype}{shape}", dtype, (LENGTH, *shape)) for dtype in dtypes for shape in shapes]
    columns += [Feature(dtype, dtype, ()) for dtype in dtypes]
    return RawSteps(steps, values, first, block), columns


@pytest.mark.parametrize("block", [1, 2])
def test_every_bit_of_every_dtype_and_shape_is_gathered(block: int) -> None:
    raw, columns = random_steps(list(DTYPES), [(), (3,), (2, 2)], block)
    numbers = np.random.default_rng(0).permutation(len(raw.first))
    host = tf.data.Dataset.from_tensor_slices(numbers).batch(4)
    dataset = resident(raw, columns, host, lambda batch: batch, CPU, -(-len(numbers) // 4))

    batches = list(dataset)
    assert len(batches) == len(dataset) == int(dataset.cardinality())
    rows = raw.first[numbers][:, np.newaxis] + np.arange(LENGTH)
    for column in columns:
        found = np.concatenate([batch[column.name].numpy() for batch in batches])
        expected = raw.steps[column.name][rows] if column.shape else raw.values[column.name][numbers]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), column
        assert found.tobytes() == expected.tobytes(), column
        assert dataset.element_spec[column.name] == tf.TensorSpec([None, *column.shape], column.dtype)
    assert [len(batch["bool"]) for batch in dataset] == [len(batch["bool"]) for batch in batches]  # once more


def test_no_gather_needs_what_gpus_lack() -> None:
    raw, columns = random_steps(list(DTYPES), [(), (3,)], 1)
    host = tf.data.Dataset.range(4).batch(2)
    dataset = resident(raw, columns, host, lambda batch: batch, CPU, 2)
    made = dataset._needed[-2]
    gathered = {op.inputs[0].dtype.name for op in made.graph.get_operations() if op.type == "GatherV2"}
    assert gathered == {
        *("bool", "bfloat16", "float16", "float32", "float64", "complex64", "complex128", "int64")
    }  # no (u)int8, (u)int16, uint32 or uint64, and no int32, which would be in host memory
    index = {op.inputs[1].dtype.name for op in made.graph.get_operations() if op.type == "GatherV2"}
    assert index == {"int64"}
    on_host = {"Reshape", "ExpandDims", "StridedSlice", "AddV2", "Mul"}  # if they are of int32
    assert not [
        op.name
        for op in made.graph.get_operations()
        if op.type in on_host and op.inputs[0].dtype == tf.int32 and op.inputs[0].shape.rank
    ]


def test_finish_makes_the_elements_and_batches_are_static() -> None:
    raw, columns = random_steps(["float32", "int32"], [(2,)], 2)
    host = tf.data.Dataset.range(8).batch(4, drop_remainder=True).repeat()

    def finish(batch: dict[str, tf.Tensor]) -> Any:
        x = batch["float32(2,)"]
        if tf.reduce_any(x > 0):  # a condition of the graph: AutoGraph has seen this function
            x = -x
        return x, {"last": batch["int32(2,)"][:, -1]}

    dataset = resident(raw, columns, host, finish, CPU, None)
    x, last = tf.TensorSpec([4, LENGTH, 2], tf.float32), tf.TensorSpec([4, 2], tf.int32)
    assert dataset.element_spec == (x, {"last": last})
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    _, parts = next(iter(dataset))
    assert parts["last"].numpy().tobytes() == raw.steps["int32(2,)"][raw.first[:4] + LENGTH - 1].tobytes()


def test_the_steps_are_held_without_a_copy_and_go_with_the_dataset() -> None:
    gc.collect()
    steps = Buffers(4 * STEPS, idle=0).array((STEPS,), np.dtype(np.float32))
    steps[:] = 1
    raw = RawSteps({"x": steps}, {}, np.arange(STEPS - LENGTH), 1)
    host = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    dataset = resident(raw, [Feature("x", "float32", (LENGTH,))], host, lambda batch: batch["x"], CPU, 2)
    iterator = iter(dataset)  # one that is never finished
    assert float(tf.reduce_sum(next(iterator))) == 4 * LENGTH
    steps[:] = 2
    assert [float(tf.reduce_sum(x)) for x in dataset] == [8 * LENGTH, 8 * LENGTH]
    held = weakref.ref(steps)
    del raw, steps, host
    assert held() is not None
    del dataset, iterator
    gc.collect()
    tf.numpy_function(np.zeros, [1], tf.float64)  # TensorFlow lets go of arrays when it next calls NumPy
    gc.collect()
    assert held() is None


def free(**there: int | None) -> Callable[[str], int | None]:
    return lambda device: there["_".join(device.split(":")[-2:])]


GPUS = ["/job:localhost/replica:0/task:0/device:GPU:0", "/job:localhost/replica:0/task:0/device:GPU:1"]
CPUS = [CPU, CPU.replace("CPU:0", "CPU:1")]


def test_what_fits_is_not_refused() -> None:
    assert misfit([100, 100], GPUS, free(CPU_0=100, GPU_0=100, GPU_1=100)) is None
    assert misfit([100, 100], GPUS, free(CPU_0=None, GPU_0=None, GPU_1=None)) is None
    assert misfit([100, 100], CPUS, free(CPU_0=200)) is None


@pytest.mark.parametrize(
    ("needed", "devices", "there", "message"),
    [
        ([3000], GPUS[:1], {"CPU_0": 9000, "GPU_0": 2048}, r"take 2.9 KiB, and .*GPU:0 has 2.0 KiB free: with res"),
        (
            [1024, 3000],
            GPUS,
            {"CPU_0": 9000, "GPU_0": 9000, "GPU_1": 2048},
            r"2.9 KiB on each of 2 .*GPU:1 has 2.0 KiB",
        ),
        ([3000], GPUS[:1], {"CPU_0": 1000, "GPU_0": 9000}, r"take 2.9 KiB, and .*CPU:0 has 1000 B free"),
        ([200, 200], CPUS, {"CPU_0": 399}, r"take 200 B on each of 2 replicas, and .*CPU:0 has 399 B free"),
    ],
)
def test_what_does_not_fit_is_told(needed: list[int], devices: list[str], there: dict[str, int], message: str) -> None:
    assert re.search(message, misfit(needed, devices, free(**there)) or "")


def test_free_memory_of_this_host_is_told() -> None:
    there = free_bytes(CPU)
    assert there is None or 2**20 < there < 2**50
    assert free_bytes(GPUS[0].replace("GPU:0", "GPU:99")) is None


def test_a_strategy_of_another_kind_is_refused() -> None:
    assert devices_of(tf.distribute.OneDeviceStrategy("/cpu:0")) == [CPU]
    assert devices_of(None) == [tf.config.list_logical_devices()[0].name] or tf.config.list_logical_devices("GPU")
    with pytest.raises(OptionError, match="needs a MirroredStrategy, a OneDeviceStrategy or none, not CentralStorage"):
        devices_of(tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"]))


CODE = """
import sys
import warnings

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 5)

import keras
import numpy as np

from reader.raw_steps import part_of, place, read_raw_steps
from reader.epochs import Course
from reader.resident import deliver, devices_of, resident
from shards import open_dataset
from shards.gather import columns_of

warnings.simplefilter("error")
BATCH = 4
dataset = open_dataset(sys.argv[1])
windows, manifest = dataset["train"], dataset.manifest
columns = columns_of(manifest, provenance=True)
where = windows.provenance()
order = np.lexsort((where["start"], where["episode"]))
every = windows[:]["window"]
numbered = {(e, s): i for i, (e, s) in enumerate(zip(where["episode"].tolist(), where["start"].tolist()))}


def load(strategy, finish):
    parts = len(devices_of(strategy))
    steps = len(windows) // parts // BATCH

    def make(part, parts, device):
        numbers = part_of(order, part, parts)
        places = place(where["episode"][numbers], where["start"][numbers], manifest.window)
        raw = read_raw_steps(windows, manifest, columns, numbers, places)
        host = tf.data.Dataset.range(steps * BATCH).batch(BATCH, drop_remainder=True)
        return resident(raw, columns, host, finish, device, steps)

    return deliver(strategy, make, Course(steps, 1, ""), lambda *at: print("seek", at)), steps


def check(name, strategy):
    local = strategy.experimental_local_results if strategy else lambda value: (value,)
    data, steps = load(strategy, lambda batch: batch)
    for _ in range(2):
        seen, devices = {}, {}
        for batch in data:
            parts = [local(values) for values in batch.values()]
            for replica, (x, valid, episode, start) in enumerate(zip(*parts)):
                keys = list(zip(episode.numpy().tolist(), start.numpy().tolist()))
                assert x.numpy().tobytes() == every[[numbered[key] for key in keys]].tobytes()
                seen.setdefault(replica, []).extend(keys)
                devices.setdefault(replica, set()).update(v.backing_device[-5:] for v in (x, valid, episode, start))
        together = sum(seen.values(), [])
        assert len(set(together)) == len(together)
        ranks = [sorted(map(sorted(numbered).index, part)) for part in seen.values()]
        assert all(rank == list(range(rank[0], rank[-1] + 1)) for rank in ranks)  # neighbours, which share steps
    print(name, len(together) == len(windows), [*devices.values()], int(data.cardinality) if strategy else len(data))

    data.seek(1, 2)
    assert data.steps_per_epoch == steps
    if name == "four":
        return
    pairs, _ = load(strategy, lambda batch: (batch["window"], batch["window"][:, -1]))

    @tf.function(jit_compile=True)
    def compute(x, y):
        return tf.reduce_sum(x), tf.reduce_sum(y)

    @tf.function
    def epoch(iterator):
        total = 0.0
        for _ in tf.range(steps):
            x, y = next(iterator)
            sums = strategy.run(compute, (x, y)) if strategy else compute(x, y)
            total += strategy.reduce("SUM", sums[0], axis=None) if strategy else sums[0]
        return total

    @tf.function
    def count(data):
        batches = 0
        for x, y in data:
            batches += 1
        return batches

    expected = every.sum(dtype=np.float64)
    sums = [float(epoch(iter(pairs))) for _ in range(2)]
    print(name, np.allclose(sums, expected), int(count(pairs)) == steps)

    with strategy.scope() if strategy else tf.device(devices_of(None)[0]):
        model = keras.Sequential([keras.Input((8, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
        model.compile("sgd", "mse", jit_compile=False)
    history = model.fit(pairs, epochs=2, verbose=0, shuffle=False).history["loss"]
    done = int(model.optimizer.iterations.numpy())
    print(name, len(history), done == 2 * steps, model.evaluate(pairs, verbose=0) > 0)


check("none", None)
check("one", tf.distribute.OneDeviceStrategy("/cpu:1"))
two = tf.distribute.MirroredStrategy(["/cpu:1", "/cpu:2"])
check("two", two)
check("four", tf.distribute.MirroredStrategy([f"/cpu:{1 + i}" for i in range(4)]))
ordinary = two.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
print([[part.numpy().tolist() for part in two.experimental_local_results(batch)] for batch in ordinary])
"""


def test_each_replica_gathers_its_own_part_on_its_own_device(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    random = np.random.default_rng(0)
    arrays = [random.random((steps, 3)).astype("f4") for steps in (74, 30, 41)]  # 34 + 12 + 18 windows
    dataset = build_here(
        save_episodes(tmp_path / "in", arrays), tmp_path / "out", window_length=8, shift=2, tail="pad", num_shards=3
    )
    assert len(dataset["train"]) % 16 == 0
    script = tmp_path / "check.py"  # AutoGraph needs its source
    script.write_text(CODE)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out")], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.stdout.splitlines() == [
        "none True [{'CPU:0'}] 16",
        "seek (1, 2)",
        "none True True",
        "none 2 True True",
        "one True [{'CPU:1'}] 16",
        "seek (1, 2)",
        "one True True",
        "one 2 True True",
        "two True [{'CPU:1'}, {'CPU:2'}] 8",
        "seek (1, 2)",
        "two True True",
        "two 2 True True",
        "four True [{'CPU:1'}, {'CPU:2'}, {'CPU:3'}, {'CPU:4'}] 4",
        "seek (1, 2)",
        "[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]",
    ], done.stderr
    assert "WARNING:tensorflow" not in done.stderr
    assert "UserWarning" not in done.stderr
