"""Epochs one after the other: what is iterated, from which step on, and how many batches there will be."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

from shards.errors import OptionError

from .exiting import until_exit

# AutoGraph has nothing to convert in our functions.
plain: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Course:
    """How the steps of a stream go on: an iteration is so many epochs of so many steps, for ever if None.

    `identity` says in words what decides which windows are in which global batch.
    """

    steps_per_epoch: int
    epochs: int | None
    identity: str

    @property
    def cardinality(self) -> int:
        """Of the steps of an iteration, as TensorFlow has it."""
        return int(tf.data.INFINITE_CARDINALITY) if self.epochs is None else self.epochs * self.steps_per_epoch

    def at(self, epoch: int, step: int) -> tuple[int, int]:
        """The (epoch, step) that this is: steps beyond an epoch are of the next. Errors: OptionError."""
        for number in (epoch, step):
            if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 0:
                raise OptionError(f"a stream cannot begin with step {step!r} of epoch {epoch!r}: they count from 0")
        return int(epoch + step // self.steps_per_epoch), int(step % self.steps_per_epoch)


class StreamPosition:
    """The epoch and the step in it with which the next iteration of a dataset begins; each iteration moves it on."""

    def __init__(self, epoch: int, step: int, epochs: int) -> None:
        self._lock, self._epochs = Lock(), epochs
        self._next = epoch, step

    def seek(self, epoch: int, step: int) -> None:
        """Let the next iteration begin there."""
        with self._lock:
            self._next = epoch, step

    def take(self) -> tuple[np.int64, np.int64]:
        """(epoch, step) of an iteration that begins now."""
        with self._lock:
            epoch, step = self._next
            self._next = epoch + self._epochs, 0
        return np.int64(epoch), np.int64(step)


def starts(place: StreamPosition) -> tf.data.Dataset:
    """One element, (epoch, step): where this iteration begins."""

    def take(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        taken = tf.numpy_function(until_exit(place.take), [], [tf.int64, tf.int64])
        return tuple(tf.ensure_shape(number, ()) for number in taken)

    return tf.data.Dataset.range(1).map(plain(take))


def numbering(epochs: int | None) -> Callable[..., tf.data.Dataset]:
    """The stage (epoch, step) -> (epoch, step), (epoch + 1, 0), ...: so many, or endlessly many if None."""

    def numbered(first: tf.Tensor, step: tf.Tensor) -> tf.data.Dataset:
        last = tf.int64.max if epochs is None else first + epochs
        return tf.data.Dataset.range(first, last).map(plain(lambda epoch: (epoch, tf.where(epoch == first, step, 0))))

    return plain(numbered)  # type: ignore[no-any-return]


def counted(dataset: tf.data.Dataset, batches: int | None) -> tf.data.Dataset:
    """The same dataset, of which TensorFlow knows that it has so many batches at most, or endlessly many if None.

    `assert_cardinality` would not do: an iteration that begins in the middle has fewer.
    """
    never = dataset.repeat()  # of the same structure, and endless; nothing is ever taken from it
    first = tf.data.Dataset.from_tensors(np.int64(0)).repeat()
    endless = tf.data.Dataset.choose_from_datasets([dataset, never], first, stop_on_empty_dataset=True)
    return endless if batches is None else endless.take(batches)
