"""The dataset that `load` returns: a `tf.data.Dataset` that knows its steps and is quick to iterate in Python."""

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator  # which has no public name

from shards.errors import ShardError

from .epochs import Course, StreamPosition

Pack = Callable[[Sequence[tf.Tensor]], Any]


class Batches(tf.data.Dataset):  # type: ignore[misc]
    """The batches of `dataset`, whose iterations begin at `place` and have `batches` each, or endlessly many if None.

    One that begins in the middle of an epoch has fewer. `course` says how the steps go on.
    """

    def __init__(self, dataset: tf.data.Dataset, batches: int | None, place: StreamPosition, course: Course) -> None:
        self._dataset, self._batches, self._place, self.course = dataset, batches, place, course
        super().__init__(dataset._variant_tensor)

    @property
    def steps_per_epoch(self) -> int:
        """The steps, or global batches, of an epoch."""
        return self.course.steps_per_epoch

    def seek(self, epoch: int, step: int = 0) -> None:
        """Let the next iteration begin with this step of this epoch."""
        self._place.seek(*self.course.at(epoch, step))

    @property
    def element_spec(self) -> Any:
        """As of any dataset."""
        return self._dataset.element_spec

    def cardinality(self) -> tf.Tensor:
        """As of any dataset; prefetching to a device would forget it."""
        return tf.constant(tf.data.INFINITE_CARDINALITY if self._batches is None else self._batches, tf.int64)

    def __iter__(self) -> Any:
        return iterate(self)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]


def iterate(dataset: tf.data.Dataset) -> Any:
    """An iterator over a dataset: TensorFlow's own, but quicker in Python where that is possible."""
    pack = packing(dataset.element_spec)
    if pack is None or not tf.executing_eagerly() or not tf.config.experimental.get_synchronous_execution():
        return tf.data.Dataset.__iter__(dataset)
    return _QuickIterator(dataset, pack)


class _QuickIterator(OwnedIterator):  # type: ignore[misc]
    """TensorFlow's own iterator, but that it does not look into the structure of the elements anew for each.

    For a pair of tensors that takes TensorFlow 100 us in Python, more than it takes to make a small batch.
    """

    def __init__(self, dataset: tf.data.Dataset, pack: Pack) -> None:
        super().__init__(dataset)
        self._pack = pack

    def __next__(self) -> Any:
        if not tf.executing_eagerly():  # in a tf.function that was given this iterator
            return super().__next__()
        try:
            tensors = tf.raw_ops.IteratorGetNext(
                iterator=self._iterator_resource,
                output_types=self._flat_output_types,
                output_shapes=self._flat_output_shapes,
            )
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        except tf.errors.UnknownError as error:
            damage = re.search(r"ShardError: (.*)", error.message)  # what Python raised in a thread of TensorFlow's
            if damage is None:
                raise
            raise ShardError(damage[1]) from None
        return self._pack(tensors)


def packing(spec: Any) -> Pack | None:
    """How elements of this structure are made of the list of their tensors; None for all but dicts and tuples.

    >>> packing((tf.TensorSpec(()), {"b": tf.TensorSpec(()), "a": tf.TensorSpec(())}))([1, 2, 3])
    (1, {'b': 3, 'a': 2})
    """
    flat = tf.nest.flatten(spec)
    if not all(isinstance(part, tf.TensorSpec) for part in flat):
        return None
    return _packing(tf.nest.pack_sequence_as(spec, list(range(len(flat)))))


def _packing(places: Any) -> Pack | None:
    if type(places) is int:
        return itemgetter(places)
    if type(places) not in {tuple, dict}:
        return None
    keys = list(places) if isinstance(places, dict) else None
    parts = [_packing(part) for part in (places.values() if isinstance(places, dict) else places)]
    if None in parts:
        return None
    if keys is None:
        return lambda tensors: tuple([part(tensors) for part in parts])  # type: ignore[misc]
    return lambda tensors: {key: part(tensors) for key, part in zip(keys, parts, strict=True)}  # type: ignore[misc]
