"""From a dict of features to what `model.fit` takes: `(x, y)`, or whatever a function of the dict gives."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from shards.errors import OptionError
from shards.features import Feature
from shards.windows import WindowSpec

from .epochs import plain

Batch = dict[str, tf.Tensor]
Targets = None | str | int | Callable[[Batch], Any]


def check_targets(targets: Targets, window: WindowSpec, features: Sequence[Feature], provenance: bool) -> None:
    """OptionError unless `targets` is None, "same", a feature, fewer steps than a window has, or a function."""
    if targets is None or callable(targets):
        return
    if provenance:
        raise OptionError("provenance=True has no place in (x, y): give a function as targets, or none")
    names = [feature.name for feature in features]
    if isinstance(targets, str):
        if targets != "same" and targets not in names:
            raise OptionError(f'targets={targets!r} is neither "same" nor a feature: {", ".join(names)}')
        if targets in names and len(names) == 1:
            raise OptionError(f"targets={targets!r} leaves nothing for x: it is the only feature")
    elif not isinstance(targets, int | np.integer) or isinstance(targets, bool):
        raise OptionError(f'targets must be None, "same", a feature, a number of steps or a function, not {targets!r}')
    elif not 0 < targets < window.length:
        raise OptionError(f"targets={targets} must leave a step to x: windows have {window.length} steps")
    elif not any(feature.shape for feature in features):
        raise OptionError(f"targets={targets} needs a feature along time, but these are none: {', '.join(names)}")
    if window.tail == "pad":
        _check_weighable(targets, features)


def _check_weighable(targets: str | int, features: Sequence[Feature]) -> None:
    """OptionError if Keras, whose losses first average over the last axis, cannot weigh steps of y."""
    for feature in features:
        in_y = targets == feature.name or not isinstance(targets, str) or targets == "same"
        if in_y and len(feature.shape) == 1 and ("float" in feature.dtype or "complex" in feature.dtype):
            raise OptionError(
                f"targets={targets!r} makes {feature.name}, one number a step, a part of y, whose padded steps no Keras"
                " loss can leave out: save the episodes with shape (steps, 1), or give a function as targets"
            )


def splitting(targets: str | int, features: Sequence[Feature]) -> Callable[[Batch], Any]:
    """The stage {name: (B, length, ...)} -> (x, y), or (x, y, weights) of padded windows; a lone feature is bare.

    "same": (x, x). The name of a feature: (the others, this one). A number h: (the first length - h steps, the last h
    steps) of features along time; values of the episode are in x.
    Where there is a mask, x has it too if y is a value of the episode; if y goes along time, weights are float32 (B,
    steps of y, 1, ...), with an axis for each of y: 1 for a real step and 0 for another, as Keras takes them.
    """
    along_time = {feature.name for feature in features if feature.shape}

    def split(batch: Batch) -> Any:
        mask = batch.get("mask")
        features = {name: values for name, values in batch.items() if name not in {"mask", "valid"}}
        if targets == "same":
            return _weighted(_bare(features), _bare(features), mask)
        if isinstance(targets, str) and targets in along_time:
            return _weighted(_bare(_without(features, targets)), features[targets], mask)
        if isinstance(targets, str):
            masked = features if mask is None else features | {"mask": mask}
            return _bare(_without(masked, targets)), features[targets]
        timed = {name: values for name, values in features.items() if name in along_time}
        x = {name: values[:, :-targets] if name in along_time else values for name, values in features.items()}
        y = {name: values[:, -targets:] for name, values in timed.items()}
        return _weighted(_bare(x), _bare(y), None if mask is None else mask[:, -targets:])

    return plain(split)  # type: ignore[no-any-return]


def _without(batch: Batch, name: str) -> Batch:
    return {other: values for other, values in batch.items() if other != name}


def _weighted(x: Any, y: Any, mask: tf.Tensor | None) -> Any:
    if mask is None:
        return x, y
    real = tf.cast(mask, tf.float32)
    return x, y, tf.nest.map_structure(lambda values: _weights_of(values, real), y)


def _weights_of(values: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    """What Keras multiplies the losses of these values with: it wants as many axes as they have but the last one."""
    if values.shape.rank == 1:  # a value of the episode
        return tf.ones_like(real[:, 0])
    return tf.reshape(real, [-1, real.shape[1], *[1] * (values.shape.rank - 2)])


def _bare(batch: Batch) -> Any:
    return next(iter(batch.values())) if len(batch) == 1 else batch
