"""What one worker of several gets, written to a file. `test_distribute.py` starts each, with its place in TF_CONFIG.

python tests/on_worker.py FOLDER FOLDER_OF_ONE_SHARD OUT
"""

import sys
import warnings
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from reader import load  # before the strategy, which wants a TensorFlow that has done nothing yet
from shards.errors import OptionError

warnings.simplefilter("error")
strategy = tf.distribute.MultiWorkerMirroredStrategy()


def windows(folder: str, iterations: int = 1, **options: Any) -> np.ndarray:
    """The (episode, start) of this worker's windows, (steps, B, 2)."""
    batches, found = load(folder, seed=3, provenance=True, strategy=strategy, **options), []
    for _ in range(iterations):
        for batch in islice(batches, 100):
            values = {name: strategy.experimental_local_results(of) for name, of in batch.items()}
            assert all(len(of) == 1 and of[0].device.endswith("CPU:0") for of in values.values())
            found.append(np.stack([values["episode"][0], values["start"][0]], axis=1))
    return np.stack(found)


def trained(folder: str) -> list[float]:
    """The loss of each epoch, and the weight, after a loop in which the replicas add up their gradients."""
    with strategy.scope():
        weight = tf.Variable(0.0)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x * weight - 3 * y) ** 2)
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.2 * tf.distribute.get_replica_context().all_reduce("MEAN", gradient))
        return loss

    @tf.function
    def train_step(batch: Any) -> tf.Tensor:
        return strategy.reduce("MEAN", strategy.run(replica_step, args=batch), axis=None)

    batches = load(folder, batch_size=16, targets="same", strategy=strategy)
    assert [spec.shape for spec in tf.nest.flatten(batches.element_spec, expand_composites=True)] == 2 * [(8, 4, 2)]
    losses = [np.mean([train_step(batch) for batch in batches]) for _ in range(3)]
    assert train_step.experimental_get_tracing_count() == 1
    return [float(value) for value in (*losses, weight.numpy())]


def main(folder: str, one_shard: str, out: str) -> None:
    try:
        load(folder, batch_size=40, remainder="keep", strategy=strategy)
    except OptionError as error:
        refused = str(error)
    np.savez(
        out,
        refused=refused,
        equal=windows(folder, iterations=2, batch_size=8),
        repeat=windows(folder, batch_size=40),
        drop=windows(folder, iterations=2, batch_size=40, remainder="drop"),
        one_shard=windows(one_shard, batch_size=8),
        later=windows(folder, iterations=2, batch_size=8, start_step=5),
        endless=windows(folder, batch_size=40, epochs=None),
        trained=trained(folder),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
