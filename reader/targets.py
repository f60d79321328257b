"""From a dict of features to what `model.fit` takes: `(x, y)`, or whatever a function of the dict gives."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from shards.errors import OptionError
from shards.manifest import Manifest

Batch = dict[str, tf.Tensor]
Targets = None | Literal["same"] | int | Callable[[Batch], Any]


def check_targets(targets: Targets, manifest: Manifest, provenance: bool) -> None:
    """OptionError unless `targets` is None, "same", a number of steps shorter than a window, or a function."""
    if targets is None or callable(targets):
        return
    if provenance:
        raise OptionError("provenance=True has no place in (x, y): give a function as targets, or none")
    if targets == "same":
        return
    if not isinstance(targets, int | np.integer) or isinstance(targets, bool):
        raise OptionError(f'targets must be None, "same", a number of steps or a function, not {targets!r}')
    if not 0 < targets < manifest.length:
        raise OptionError(f"targets={targets} must leave a step to x: windows have {manifest.length} steps")


def splitting(targets: str | int) -> Callable[[Batch], Any]:
    """The stage {name: (B, length, ...)} -> (x, y); one feature alone comes out of its dict.

    "same": (x, x). A number h: (the first length - h steps, the last h steps).
    """

    def split(batch: Batch) -> Any:
        if isinstance(targets, str):
            x = _bare(batch)
            return x, x
        return (
            _bare({name: values[:, :-targets] for name, values in batch.items()}),
            _bare({name: values[:, -targets:] for name, values in batch.items()}),
        )

    return tf.autograph.experimental.do_not_convert(split)  # type: ignore[no-any-return]


def _bare(batch: Batch) -> Any:
    return next(iter(batch.values())) if len(batch) == 1 else batch
