"""One dataset for all replicas of a strategy: each gets its equal part of every global batch, on its own device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from shards.errors import OptionError

from .batches import Batches

Pipeline = Callable[[int, int, int], Batches]  # (part, of so many, replicas that share it) -> their batches in turns


def replicas_of(strategy: tf.distribute.Strategy | None, batch_size: int) -> int:
    """How many replicas share a global batch. Errors: OptionError if they cannot share it equally."""
    if strategy is None:
        return 1
    if not isinstance(strategy, tf.distribute.Strategy):
        raise OptionError(f"strategy must be a tf.distribute.Strategy, not {strategy!r}")
    replicas = int(strategy.num_replicas_in_sync)
    if batch_size % replicas:
        raise OptionError(
            f"batch_size={batch_size} is the global batch, and {replicas} replicas cannot share it equally:"
            f" choose a multiple of {replicas}"
        )
    return replicas


def distribute(strategy: tf.distribute.Strategy, pipeline: Pipeline, steps: int | None) -> Any:
    """The distributed dataset of `steps` elements, a batch for each replica, fetched to its device beforehand.

    Each worker reads its own part of each global batch, and its replicas take turns at it; AutoShard has no say.
    `steps_per_epoch` and `seek` are as in `Batches`.
    """
    made: list[Batches] = []

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        workers = context.num_input_pipelines
        made.append(pipeline(context.input_pipeline_id, workers, context.num_replicas_in_sync // workers))
        return made[-1]

    distributed = strategy.distribute_datasets_from_function(batches)
    (mine,) = made
    distributed.steps_per_epoch, distributed.seek = mine.steps_per_epoch, mine.seek
    # TensorFlow takes the batches of all replicas for steps, and Keras would ask for as many.
    distributed._cardinality = np.int64(tf.data.INFINITE_CARDINALITY if steps is None else steps)
    return distributed
