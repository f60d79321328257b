"""One dataset for all replicas of a strategy: each gets its equal part of every global batch, on its own device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .batches import Batches
from .epochs import Course

Pipeline = Callable[[int, int, int], Batches]  # (part, of so many, replicas that share it) -> their batches in turns


def distribute(strategy: tf.distribute.Strategy, pipeline: Pipeline) -> Any:
    """The distributed dataset whose element is a batch for each replica, fetched to its device beforehand.

    Each worker reads its own part of each global batch, and its replicas take turns at it; AutoShard has no say.
    It has `course`, `steps_per_epoch` and `seek` as `Batches` do.
    """
    made: list[Batches] = []

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        workers = context.num_input_pipelines
        made.append(pipeline(context.input_pipeline_id, workers, context.num_replicas_in_sync // workers))
        return made[-1]

    distributed = strategy.distribute_datasets_from_function(batches)

    def seek(epoch: int, step: int = 0) -> None:
        for each in made:
            each.seek(epoch, step)

    return with_course(distributed, made[0].course, seek)


def with_course(distributed: Any, course: Course, seek: Callable[[int, int], None]) -> Any:
    """A distributed dataset that has `course`, `steps_per_epoch` and `seek`, as `Batches` do."""
    distributed.course, distributed.steps_per_epoch, distributed.seek = course, course.steps_per_epoch, seek
    # TensorFlow takes the batches of all replicas for steps, and Keras would ask for as many.
    distributed._cardinality = np.int64(course.cardinality)
    # All replicas end with the same step. Else several workers would ask one another before each who has a batch, which
    # takes as long again as a step, and no shape would be static.
    distributed._enable_get_next_as_optional = False
    return distributed
