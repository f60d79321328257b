"""Features along time standardized with the statistics of the training split, and the mask of padded steps."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from shards.errors import OptionError
from shards.features import Feature
from shards.manifest import Manifest

from .targets import Batch


def masking(length: int) -> Callable[[Batch], Batch]:
    """The stage that adds `mask`, a bool (B, length) that is true where a step is real."""

    def mask(batch: Batch) -> Batch:
        return batch | {"mask": tf.sequence_mask(batch["valid"], length)}

    return tf.autograph.experimental.do_not_convert(mask)  # type: ignore[no-any-return]


def normalizing(manifest: Manifest, features: Sequence[Feature]) -> Callable[[Batch], Batch]:
    """The stage (x - mean) / std of every float among the features along time, by component: the last axis of a step.

    A component that is constant becomes 0, and so do steps that are not real.
    Errors: OptionError if no feature is a float along time.
    """
    scales = {}
    dtypes = {f.name: f.dtype for f in features if f.shape and "float" in f.dtype}
    for statistics in manifest.statistics:
        if statistics.feature in dtypes:
            parts = statistics.components
            mean = np.array([part.mean for part in parts])
            least = 1 / float(np.finfo(np.float64 if dtypes[statistics.feature] == "float64" else np.float32).max)
            scale = np.array([1 / part.std if part.std > max(_constant(part.mean), least) else 0.0 for part in parts])
            scales[statistics.feature] = (mean, scale)
    if not scales:
        raise OptionError("normalize=True has nothing to do: no feature along time is a float; build with --dtype")

    def normalize(batch: Batch) -> Batch:
        done = dict(batch)
        for name, (mean, scale) in scales.items():
            values = batch[name]
            wide = tf.float64 if values.dtype == tf.float64 else tf.float32  # of narrower ones too
            near = mean.astype(wide.as_numpy_dtype)
            parts = (part[0] if values.shape.rank == 2 else part for part in (near, mean - near, scale))
            most, rest, scale_ = (tf.constant(part, wide) for part in parts)  # the mean in two parts loses no digit
            scaled = (tf.cast(values, wide) - most - rest) * scale_
            if "mask" in batch:
                rank = values.shape.rank
                real = tf.reshape(batch["mask"], [-1, values.shape[1], *[1] * (rank - 2)])
                scaled = tf.where(real, scaled, tf.zeros((), wide))
            done[name] = tf.cast(scaled, values.dtype)
        return done

    return tf.autograph.experimental.do_not_convert(normalize)  # type: ignore[no-any-return]


def _constant(mean: float) -> float:
    """A deviation that rounding alone may leave of a constant."""
    return abs(mean) * 2.0**-50
