"""Train on the GPUs of many machines, or of processes of one: each worker reads its own part of every global batch.

    python examples/many_workers.py SHARDS --local 2          # two workers on this machine
    TF_CONFIG='{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}' \\
        python examples/many_workers.py SHARDS                # on machine a; on b with "index": 1

SHARDS is what `python -m pipeline build` made, and each worker must see it. The loop is written out, since the `fit` of
Keras 3 cannot train with several workers. It learns to foretell the last value of each window from the one before.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def start(workers: int, shards: str, epochs: int) -> int:
    """Start so many workers on this machine, and wait; if one fails, end all. Returns 0 if none did."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    command = [sys.executable, __file__, shards, "--epochs", str(epochs)]
    running = []
    try:
        for index in range(workers):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment = os.environ | {"TF_CONFIG": json.dumps(config)}
            running.append(subprocess.Popen(command, env=environment))
        while any(code is None for code in [worker.poll() for worker in running]):
            if any(worker.returncode for worker in running):
                return 1
            time.sleep(0.2)
        return int(any(worker.returncode for worker in running))
    finally:
        for worker in running:
            worker.kill()


def train(shards: str, epochs: int) -> None:
    """What each worker does."""
    import numpy as np
    import tensorflow as tf

    from reader import load
    from shards import open_dataset

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    batches = load(shards, batch_size=64, seed=7, targets=1, normalize=True, strategy=strategy)
    windows = open_dataset(shards)["train"][:]["window"]
    with strategy.scope():
        matrix = tf.Variable(tf.zeros([windows.shape[-1]] * 2))

    def replica_step(past: tf.Tensor, future: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((past[:, -1] @ matrix - future[:, 0]) ** 2)
        slope = tape.gradient(loss, matrix)
        matrix.assign_sub(0.1 * tf.distribute.get_replica_context().all_reduce("MEAN", slope))
        return loss

    @tf.function
    def train_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return strategy.reduce("MEAN", strategy.run(replica_step, args=batch), axis=None)

    worker = strategy.cluster_resolver.task_id
    for epoch in range(epochs):
        loss = np.mean([train_step(batch) for batch in batches])  # an iteration is an epoch, of equal steps everywhere
        print(f"worker {worker}, epoch {epoch}: loss {loss:.4f}", flush=True)
    constant = float(np.mean(windows[:, -1].var(axis=0) / windows.var(axis=(0, 1))))
    print(f"worker {worker}: loss {loss:.4f}, of the best constant answer {constant:.4f}", flush=True)


def main() -> None:
    """Be one worker, or start some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--local", type=int, help="start so many workers on this machine")
    options = parser.parse_args()
    if options.local:
        sys.exit(start(options.local, options.shards, options.epochs))
    train(options.shards, options.epochs)


if __name__ == "__main__":
    main()
