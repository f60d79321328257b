"""Batches on their way to the device before the training step asks for them."""

import tensorflow as tf

_HOST_BATCHES = 4
_DEVICE_BATCHES = 2


def only_gpu() -> str | None:
    """The name of the GPU to prefetch onto: the one that TensorFlow sees, if it sees just one.

    With several GPUs, or inside a strategy, it is the strategy that places batches.
    """
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if len(gpus) == 1 and not tf.distribute.has_strategy() else None


def prefetch(dataset: tf.data.Dataset, device: str | None) -> tf.data.Dataset:
    """Prefetch into host memory, and from there onto a device if one is named."""
    dataset = dataset.prefetch(_HOST_BATCHES)
    if device is None:
        return dataset
    on_device = dataset.apply(tf.data.experimental.prefetch_to_device(device, buffer_size=_DEVICE_BATCHES))
    # Prefetching to a device must come last, and forgets how many batches there are. Keras and len() ask the object.
    on_device.cardinality = dataset.cardinality
    return on_device
