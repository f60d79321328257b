"""What is made of a batch after it was gathered: mask, normalize, map_fn and targets, in one function."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from shards.features import Feature
from shards.manifest import Manifest
from shards.naming import RESERVED

from .epochs import plain
from .normalize import masking, normalizing, scales_of
from .options import LoadOptions
from .targets import Batch, check_targets, splitting


def finishing(manifest: Manifest, columns: Sequence[Feature], options: LoadOptions) -> Callable[[Batch], Any]:
    """{name: (B, length, ...)} -> what the user asked for. Errors: OptionError."""
    taken = [column for column in columns if column.name not in RESERVED]
    check_targets(options.targets, manifest.window, taken, options.provenance)
    stages: list[Callable[[Any], Any]] = [_shaped]
    if manifest.window.tail == "pad":
        stages.append(masking(manifest.window.length))  # with "mask": (B, length)
    if options.normalize is not False:
        stages.append(normalizing(scales_of(manifest, taken, options.normalize)))
    if options.map_fn is not None:
        stages.append(tf.function(options.map_fn))  # {name: anything}
    if callable(options.targets):
        stages.append(tf.function(options.targets))  # anything
    elif options.targets is not None:
        stages.append(splitting(options.targets, taken))  # (x, y), (x, y, weights)
    return plain(lambda batch: functools.reduce(lambda made, stage: stage(made), stages, batch))  # type: ignore[no-any-return]


def _shaped(batch: Batch) -> Batch:
    """The same. TensorFlow mistakes the shapes of what comes from `counted`, when it is concatenated for example."""
    return {name: tf.ensure_shape(values, values.shape) for name, values in batch.items()}
