"""Training that can be killed at any moment: run the same command again, and it goes on at the step it had reached.

    python examples/resume.py windows --run run --every 500

`windows` is a dataset, `run` the folder of the checkpoint. It trains a small autoencoder of one feature and prints
where it went on and the final loss, which is that of a training that nothing interrupted.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from reader import Resume, load
from shards import open_dataset


def autoencoder(values: int) -> keras.Model:
    """Of each step of a window, (B, length, values): through half as many numbers."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.1),
            layers.Dense(max(1, values // 2)),
            layers.Dense(64, activation="relu"),
            layers.Dense(values),
        ]
    )


def main() -> None:
    """Train, from wherever the run before came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("windows", type=Path)
    parser.add_argument("--run", type=Path, default=Path("run"))
    parser.add_argument("--feature", default="window")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--every", type=int, default=500, help="steps between two checkpoints")
    options = parser.parse_args()

    tf.config.experimental.enable_op_determinism()  # or the weights may differ in their last bits
    keras.utils.set_random_seed(7)
    train = load(
        options.windows, batch_size=options.batch_size, features=[options.feature], targets="same", normalize=True
    )
    model = autoencoder(open_dataset(options.windows)["train"][0][options.feature].shape[-1])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")

    resume = Resume(options.run, train, every=options.every)

    def tell(logs: object) -> None:
        epoch, step = resume.began or (0, 0)
        print(f"{'begins' if resume.began is None else 'goes on'} at epoch {epoch + 1}, step {step}", flush=True)

    callbacks = [resume, keras.callbacks.LambdaCallback(on_train_begin=tell)]
    model.fit(train, epochs=options.epochs, shuffle=False, verbose=2, callbacks=callbacks)
    print(f"loss: {model.evaluate(train, verbose=0):.6f}")


if __name__ == "__main__":
    main()
