"""Forecast the last steps of each window from those before, on one GPU if there is one, else on the CPU.

    python examples/one_gpu.py                      # a few episodes made up for it
    python examples/one_gpu.py --input recordings --mixed

It prints the loss on episodes that were never trained on, beside that of the best constant answer.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from reader import load

LENGTH, AHEAD = 16, 4


def make_episodes(folder: Path) -> None:
    """Waves of two values, of many frequencies, with some noise: (T, 2) each."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for episode in range(40):
        phase = np.arange(random.integers(60, 90)) * random.uniform(0.2, 0.6)
        wave = np.stack([np.sin(phase), np.cos(phase)], axis=1) + 0.05 * random.standard_normal((len(phase), 2))
        np.save(folder / f"{episode:03d}.npy", wave.astype(np.float32))


def build_shards(episodes: Path | None, folder: Path) -> Path:
    """The dataset, below `folder`, of these episodes, or of some that are made up; one that is there is replaced."""
    if episodes is None:
        episodes = folder / "episodes"
        make_episodes(episodes)
    shards = folder / "shards"
    command = [sys.executable, "-m", "pipeline", "build", "--input", str(episodes), "--output", str(shards)]
    command += ["--window_length", str(LENGTH), "--shift", "4", "--splits", "train=0.8,validation=0.2", "--overwrite"]
    subprocess.run(command, check=True)
    return shards


def noisy(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Augmentation: whole batches pass through, (B, length, values)."""
    window = batch["window"]
    return batch | {"window": window + tf.random.normal(tf.shape(window), stddev=0.02)}


def main() -> None:
    """Build, train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, help="a folder of .npy episodes of the same values")
    parser.add_argument("--folder", type=Path, default=Path("one_gpu"), help="the dataset there is replaced")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--mixed", action="store_true", help="compute in bfloat16 what can be")
    options = parser.parse_args()
    shards = build_shards(options.input, options.folder)

    keras.utils.set_random_seed(7)
    if options.mixed:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    # Batches are on the GPU before they are asked for, standardized by the statistics of the training split.
    how = {"batch_size": 64, "targets": AHEAD, "normalize": True}
    train = load(shards, seed=7, map_fn=noisy, **how)
    validation = load(shards, split="validation", shuffle=False, **how)
    past, future = train.element_spec
    layers = [keras.layers.Input(past.shape[1:]), keras.layers.Flatten(), keras.layers.Dense(128, activation="relu")]
    layers += [
        keras.layers.Dense(int(np.prod(future.shape[1:])), dtype="float32"),
        keras.layers.Reshape(future.shape[1:]),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(2e-3), "mse")
    model.fit(train, validation_data=validation, epochs=options.epochs, shuffle=False, verbose=2)

    unseen = np.concatenate([y for _, y in validation])
    constant = float(np.mean((unseen - unseen.mean(axis=(0, 1))) ** 2))
    print(f"loss {model.evaluate(validation, verbose=0):.4f}, of the best constant answer {constant:.4f}")


if __name__ == "__main__":
    main()
