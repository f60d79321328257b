"""A training loop of one's own, compiled by XLA: many steps within one call, over the ends of epochs, from any step on.

    python examples/custom_loop.py SHARDS --steps 300
    python examples/custom_loop.py SHARDS --steps 300 --start_step 300   # the batches that would come next
    python examples/custom_loop.py SHARDS --replicas 2                   # a strategy of so many parts of the CPU

SHARDS is what `python -m pipeline build` made. It learns to foretell the last value of each window from the one before
as one linear map, and prints the loss of the last steps, beside that of the best constant answer.
"""

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from many_gpus import strategy_of

from reader import load
from shards import open_dataset

STEPS_PER_CALL = 50


def main() -> None:
    """Train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--start_step", type=int, default=0)
    parser.add_argument("--replicas", type=int)
    options = parser.parse_args()

    strategy = strategy_of(options.replicas) if options.replicas else tf.distribute.get_strategy()
    batches = load(
        options.shards,
        batch_size=64,
        seed=7,
        targets=1,
        normalize=True,
        epochs=None,
        start_step=options.start_step,
        strategy=strategy if options.replicas else None,
    )
    windows = open_dataset(options.shards)["train"][:]["window"]
    values = windows.shape[-1]
    with strategy.scope():
        matrix = tf.Variable(tf.zeros([values, values]))

    @tf.function(jit_compile=True)
    def gradient(past: tf.Tensor, future: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((past[:, -1] @ matrix - future[:, 0]) ** 2)
        return loss, tape.gradient(loss, matrix)

    def replica_step(past: tf.Tensor, future: tf.Tensor) -> tf.Tensor:
        loss, slope = gradient(past, future)
        matrix.assign_sub(0.1 * tf.distribute.get_replica_context().all_reduce("MEAN", slope))
        return loss

    @tf.function
    def train(iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        total = 0.0
        for _ in tf.range(steps):
            losses = strategy.run(replica_step, args=next(iterator))
            total += strategy.reduce("MEAN", losses, axis=None)
        return total / tf.cast(steps, tf.float32)

    iterator = iter(batches)
    for done in range(0, options.steps, STEPS_PER_CALL):
        loss = train(iterator, tf.constant(min(STEPS_PER_CALL, options.steps - done)))
        print(f"step {options.start_step + done}: loss {loss:.4f}")
    last = windows[:, -1]
    constant = float(np.mean(last.var(axis=0) / windows.var(axis=(0, 1))))
    print(f"loss {loss:.4f}, of the best constant answer {constant:.4f}")


if __name__ == "__main__":
    main()
