"""The main job on real episodes: CartPole is played, the recordings become shards, an autoencoder trains from them.

Run by `make demo`. It prints the loss on episodes that were never trained on, as a share of the loss of the best
constant answer: 1 is no better than always answering the mean window, 0 is perfect.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gymnasium
import keras
import numpy as np

from reader import load
from shards import open_dataset

LENGTH, SHIFT, CODE = 32, 4, 12


def play(folder: Path, episodes: int) -> None:
    """Roll out CartPole-v1, acting at random now and then, and save each episode's (T, 4) observations."""
    folder.mkdir(parents=True)
    env = gymnasium.make("CartPole-v1")
    for episode in range(episodes):
        random = np.random.default_rng(episode)
        erratic = random.uniform(0.1, 0.8)
        observation, _ = env.reset(seed=episode)
        steps, ended = [observation], False
        while not ended:
            steady = int(observation[2] + 0.3 * observation[3] > 0)  # push towards where the pole falls
            action = int(random.integers(2)) if random.random() < erratic else steady
            observation, _, terminated, truncated, _ = env.step(action)
            steps.append(observation)
            ended = terminated or truncated
        np.save(folder / f"{episode:04d}.npy", np.stack(steps))


def autoencoder(example: np.ndarray) -> keras.Model:
    """Windows (B, 32, 4) squeezed through 12 numbers; `example` windows give the mean and scale of each value."""
    layers = keras.layers
    mean, variance = example.mean(axis=(0, 1)), example.var(axis=(0, 1))
    return keras.Sequential(
        [
            layers.Input(example.shape[1:]),
            layers.Normalization(mean=mean, variance=variance),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(CODE),
            layers.Dense(128, activation="relu"),
            layers.Dense(example[0].size),
            layers.Reshape(example.shape[1:]),
            layers.Normalization(mean=mean, variance=variance, invert=True),
        ]
    )


def main() -> None:
    """Play, build, train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="made anew")
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    episodes, shards = options.folder / "episodes", options.folder / "shards"
    for folder in (episodes, shards):
        shutil.rmtree(folder, ignore_errors=True)

    print(f"playing {options.episodes} episodes of CartPole ...", flush=True)
    play(episodes, options.episodes)

    command = [sys.executable, "-m", "pipeline", "build", "--input", str(episodes), "--output", str(shards)]
    command += ["--window_length", str(LENGTH), "--shift", str(SHIFT), "--name", "cartpole"]
    command += ["--splits", "train=0.8,validation=0.2", "--num_shards", "train=8,validation=2"]
    print("$ python", *command[1:], flush=True)
    subprocess.run(command, check=True)

    keras.utils.set_random_seed(7)
    model = autoencoder(open_dataset(shards)["train"][:2000]["window"])
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss="mse")
    train = load(shards, split="train", batch_size=128, seed=7, targets="same")
    validation = load(shards, split="validation", batch_size=128, shuffle=False, targets="same")
    # shuffle=False: the stream is shuffled already, and Keras would only warn that it cannot do it again.
    model.fit(train, validation_data=validation, epochs=options.epochs, shuffle=False, verbose=2)

    unseen = open_dataset(shards)["validation"][:]["window"]
    constant = float(np.mean((unseen - unseen.mean(axis=0)) ** 2))
    loss = model.evaluate(validation, verbose=0)
    print(f"validation loss {loss:.4f}, that of the best constant answer {constant:.4f}: ratio {loss / constant:.3f}")


if __name__ == "__main__":
    main()
