"""Which label a recording has, from its windows: labelled episodes become shards, a Keras classifier trains from them.

    python examples/classify.py --input recordings --labels labels.csv --target speaker

It prints the accuracy on episodes that the model never saw, for single windows and for whole episodes (the sum of what
their windows say), beside that of always answering the commonest class. With --group_by, no group is in two splits:
then the target must be something else than the group, or the model has never seen what it is asked for.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from reader import load
from shards import open_dataset


def classifier(example: dict[str, np.ndarray], target: str, classes: int) -> keras.Model:
    """A small convolutional network over the one feature along time, (B, length, values)."""
    (window,) = (values for name, values in example.items() if name not in {target, "valid"})
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input(window.shape),
            layers.Conv1D(64, 3, padding="same", activation="relu"),
            layers.Conv1D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(64, activation="relu"),
            layers.Dense(classes),
        ]
    )


def main() -> None:
    """Build, train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True)
    parser.add_argument("--labels", required=True)
    parser.add_argument("--target", required=True, help="a column of whole numbers or words")
    parser.add_argument("--group_by")
    parser.add_argument("--output", type=Path, default=Path("classify"), help="a dataset there is replaced")
    parser.add_argument("--window_length", default="5")
    parser.add_argument("--shift", default="2")
    parser.add_argument("--stride", default="2")
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()

    command = [
        sys.executable,
        "-m",
        "pipeline",
        "build",
        "--overwrite",
        "--splits",
        "train=0.6,validation=0.2,test=0.2",
    ]
    for flag in ("input", "labels", "group_by", "output", "window_length", "shift", "stride"):
        if (value := getattr(options, flag)) is not None:
            command += [f"--{flag}", str(value)]
    print("$ python", *command[1:], flush=True)
    subprocess.run(command, check=True)

    dataset = open_dataset(options.output)
    classes = 1 + max(int(split[:][options.target].max()) for split in dataset.values())
    keras.utils.set_random_seed(7)
    model = classifier(dataset["train"][0], options.target, classes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
    how = {"targets": options.target, "normalize": True}
    train = load(options.output, split="train", batch_size=64, seed=7, **how)
    validation = load(options.output, split="validation", batch_size=256, shuffle=False, **how)
    model.fit(train, validation_data=validation, epochs=options.epochs, shuffle=False, verbose=2)

    test = load(options.output, split="test", batch_size=256, shuffle=False, provenance=True, normalize=True)
    said, truth, episodes = [], [], []
    for batch in test:
        truth.append(batch[options.target])
        episodes.append(batch["episode"])
        window = next(values for name, values in batch.items() if values.shape.rank > 1 and name != "mask")
        said.append(model(window))
    said, truth, episodes = map(np.concatenate, (said, truth, episodes))
    numbers, of_episode = np.unique(episodes, return_inverse=True)
    whole = np.zeros((len(numbers), classes))
    np.add.at(whole, of_episode, said)
    labels = np.zeros(len(numbers), np.int64)
    labels[of_episode] = truth
    print(f"windows:  {np.mean(said.argmax(1) == truth):.3f} of {len(truth)} right")
    print(f"episodes: {np.mean(whole.argmax(1) == labels):.3f} of {len(labels)} right")
    print(f"commonest class alone: {np.bincount(labels).max() / len(labels):.3f}")


if __name__ == "__main__":
    main()
