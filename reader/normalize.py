"""Features along time standardized with the statistics of the training split, and the mask of padded steps."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from shards.errors import OptionError
from shards.features import Feature
from shards.manifest import Manifest

from .epochs import plain
from .targets import Batch


def masking(length: int) -> Callable[[Batch], Batch]:
    """The stage that adds `mask`, a bool (B, length) that is true where a step is real."""

    def mask(batch: Batch) -> Batch:
        return batch | {"mask": tf.sequence_mask(batch["valid"], length)}

    return plain(mask)  # type: ignore[no-any-return]


Scales = dict[str, tuple[np.ndarray, np.ndarray]]


def scales_of(manifest: Manifest, features: Sequence[Feature], chosen: bool | Sequence[str]) -> Scales:
    """{feature: (mean, 1 / std)}, by component, of the float features along time; of those `chosen`, if they are named.

    The scale of what is constant is 0. Errors: OptionError for a feature that is not one of these, or if there is none.
    """
    floats = {f.name: f.dtype for f in features if f.shape and "float" in f.dtype}
    names = list(floats) if chosen is True else [] if isinstance(chosen, str | bool) else list(chosen)
    if not names:
        raise OptionError(
            "normalize=True has nothing to do: no feature along time is a float; build with --dtype"
            if chosen is True
            else f"normalize must be True, False or a sequence of features, not {chosen!r}"
        )
    scales: Scales = {}
    for statistics in manifest.statistics:
        if statistics.feature not in names or statistics.feature not in floats:
            continue
        parts = statistics.components
        least = 1 / float(np.finfo(np.float64 if floats[statistics.feature] == "float64" else np.float32).max)
        scale = [1 / part.std if part.std > max(_constant(part.mean), least) else 0.0 for part in parts]
        scales[statistics.feature] = np.array([part.mean for part in parts]), np.array(scale)
    if missing := [name for name in names if name not in scales]:
        raise OptionError(
            f"normalize names {missing[0]!r}, which is no float along time: {', '.join(floats) or 'none'}"
        )
    return scales


def normalizing(scales: Scales) -> Callable[[Batch], Batch]:
    """The stage (x - mean) / std; what is constant becomes 0, and so do steps that are not real."""

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

    return plain(normalize)  # type: ignore[no-any-return]


def _constant(mean: float) -> float:
    """A deviation that rounding alone may leave of a constant."""
    return abs(mean) * 2.0**-50
