"""Train an autoencoder of windows on all GPUs of a machine; the same batches as one GPU would get, shared among them.

    python examples/many_gpus.py --input recordings
    python examples/many_gpus.py --replicas 2       # without GPUs: so many replicas on the CPU

It prints the loss on episodes that were never trained on, beside that of the best constant answer.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from one_gpu import build_shards

from reader import load
from shards import open_dataset


def strategy_of(replicas: int | None) -> tf.distribute.Strategy:
    """All GPUs, or so many parts of the CPU."""
    if replicas is None:
        return tf.distribute.MirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def main() -> None:
    """Build, train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, help="a folder of .npy episodes of the same values")
    parser.add_argument("--folder", type=Path, default=Path("many_gpus"), help="the dataset there is replaced")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=64, help="of all replicas together")
    parser.add_argument("--replicas", type=int)
    options = parser.parse_args()
    shards = build_shards(options.input, options.folder)

    strategy = strategy_of(options.replicas)
    keras.utils.set_random_seed(7)
    how = {"batch_size": options.batch_size, "targets": "same", "strategy": strategy}
    train = load(shards, seed=7, **how)
    validation = load(shards, split="validation", shuffle=False, **how)
    example = open_dataset(shards)["train"][0]["window"]
    with strategy.scope():
        layers = [keras.layers.Input(example.shape), keras.layers.Flatten(), keras.layers.Dense(12)]
        layers += [keras.layers.Dense(example.size), keras.layers.Reshape(example.shape)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    model.fit(train, validation_data=validation, epochs=options.epochs, shuffle=False, verbose=2)

    unseen = open_dataset(shards)["validation"][:]["window"]
    constant = float(np.mean((unseen - unseen.mean(axis=(0, 1))) ** 2))
    loss = model.evaluate(validation, verbose=0)
    print(f"{strategy.num_replicas_in_sync} replicas: loss {loss:.4f}, of the best constant answer {constant:.4f}")


if __name__ == "__main__":
    main()
