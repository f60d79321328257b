"""Batches on their way to the device before the training step asks for them."""

import tensorflow as tf

_HOST_BATCHES = 4
_DEVICE_BATCHES = 2


def prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prefetch into host memory, and from there onto the GPU where there is exactly one to be used.

    With several GPUs, or inside a strategy, batches stay in host memory: there the strategy places them.
    """
    dataset = dataset.prefetch(_HOST_BATCHES)
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) != 1 or tf.distribute.has_strategy():
        return dataset
    return dataset.apply(tf.data.experimental.prefetch_to_device(gpus[0].name, buffer_size=_DEVICE_BATCHES))
