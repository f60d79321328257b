"""Windows gathered on the device that trains, from raw steps in its memory: a step brings only their numbers there.

host                                      device
numbers of windows, int64 (B,)  ------->  rows of their blocks of steps, (B, length / block)
                                          blocks gathered, (B, length, ...); `finish`; a batch or two ahead
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from shards.dataset import Windows
from shards.errors import OptionError
from shards.features import Feature
from shards.manifest import Manifest

from .capacity import HOST, too_large
from .chunks import Numbers, epoch_function
from .distribute import with_course
from .epochs import Course, StreamPosition, numbering, plain, starts
from .options import LoadOptions
from .placed import placed
from .raw_steps import RawSteps, read_raw_steps
from .shares import Share
from .targets import Batch

Make = Callable[[int, int, str], tf.data.Dataset]  # (part, parts, device) -> what `resident` gives for this part
Seek = Callable[[int, int], None]

_NUMBERS_AHEAD = 4  # batches of them on the host

# GPUs have no gather for these dtypes, or keep them in host memory (int32): they are held as others of as many bytes,
# and bytes by twos. Nothing is computed with those but copies, so all bits stay.
_HELD = {
    tf.int32: tf.float32,
    tf.uint32: tf.float32,
    tf.uint64: tf.int64,
    tf.int16: tf.float16,
    tf.uint16: tf.float16,
    tf.int8: tf.float16,
    tf.uint8: tf.float16,
}


def devices_of(strategy: tf.distribute.Strategy | None) -> list[str]:
    """The device of each replica. Errors: OptionError for a strategy whose replicas cannot hold raw steps."""
    if strategy is None:
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return [devices[0].name]
    if not isinstance(strategy, tf.distribute.OneDeviceStrategy | tf.distribute.MirroredStrategy):
        raise OptionError(
            f"resident=True needs a MirroredStrategy, a OneDeviceStrategy or none, not {type(strategy).__name__}:"
            " leave it out, and batches are sent to the devices"
        )
    return list(strategy.extended.worker_devices)


class _Held:
    """An (N, *shape) array in the memory of a device, whose rows are gathered there."""

    def __init__(self, array: np.ndarray, device: str) -> None:
        self._dtype = tf.as_dtype(array.dtype)
        held = _HELD.get(self._dtype, self._dtype)
        self._row_bytes = array.nbytes // len(array)
        self._odd = bool(self._row_bytes % held.size)
        if self._odd:  # rows begin in the middle of two bytes: they are all one, and what is gathered is cut
            every = array.reshape(-1).view(np.uint8)
            array = np.concatenate([every, np.zeros(len(every) % 2, np.uint8)]).view(held.as_numpy_dtype)
        elif held != self._dtype:
            array = array.reshape(len(array), -1).view(held.as_numpy_dtype)
        try:
            self._array = _put(array, device)
            if self._odd:
                self._pairs = _put(np.arange((self._row_bytes + 1) // 2), device)
        except tf.errors.ResourceExhaustedError as error:
            raise OptionError(too_large([array.nbytes], device, "has not as much in one piece")) from error

    def take(self, rows: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
        """The rows at int64 (B, ...) `rows`, all those of one b as an array of this shape: (B, *shape)."""
        whole = [-1 if rows.shape[0] is None else rows.shape[0], *shape]
        if self._odd:
            return tf.reshape(self._take_odd(rows), whole)
        taken = tf.gather(self._array, rows)
        if taken.dtype.size != self._dtype.size:
            return tf.reshape(tf.bitcast(taken, self._dtype), whole)
        taken = tf.reshape(taken, whole)  # first, since GPUs leave int32 where it is only as long as nobody reshapes it
        return taken if taken.dtype == self._dtype else tf.bitcast(taken, self._dtype)

    def _take_odd(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows of an odd number of bytes: one more is gathered, and the first or the last left out."""
        begin = rows * self._row_bytes
        taken = tf.gather(self._array, tf.bitwise.right_shift(begin, np.int64(1))[..., tf.newaxis] + self._pairs)
        taken = tf.reshape(tf.bitcast(taken, self._dtype), [-1, self._row_bytes + 1])
        late = tf.cast(tf.bitwise.bitwise_and(tf.reshape(begin, [-1, 1]), np.int64(1)), tf.bool)
        return tf.where(late, taken[:, 1:], taken[:, :-1])


def _put(array: np.ndarray, device: str) -> tf.Tensor:
    """The array as a tensor of a device; of a CPU without a copy, if its memory is aligned as TensorFlow likes it."""
    arrays, dtype = [array], array.dtype  # taken out when it is called: TensorFlow keeps functions for long
    take = tf.function(lambda: tf.numpy_function(arrays.pop, [], dtype), autograph=False).get_concrete_function()
    with tf.device(HOST):
        on_host = tf.ensure_shape(take(), array.shape)
    with tf.device(device):
        return tf.identity(on_host)


def gathering(raw: RawSteps, columns: Sequence[Feature], device: str) -> Callable[[tf.Tensor], Batch]:
    """The stage numbers (B,) -> {name: (B, length, ...) or (B,)}, whose arrays are placed on a device now.

    Numbers count the windows of `raw`, from 0. Errors: OptionError if the device's memory does not suffice.
    """
    block = raw.block
    held = {name: _Held(steps.reshape(-1, block, *steps.shape[1:]), device) for name, steps in raw.steps.items()}
    held |= {name: _Held(values, device) for name, values in raw.values.items()}
    first = _Held(raw.first // block, device)
    length = max((column.shape[0] for column in columns if column.shape), default=block)
    blocks = _put(np.arange(length // block), device)

    def gather(numbers: tf.Tensor) -> Batch:
        rows = first.take(numbers, ())[:, tf.newaxis] + blocks  # (B, length / block)
        return {
            column.name: held[column.name].take(rows if column.shape else numbers, column.shape) for column in columns
        }

    return plain(gather)  # type: ignore[no-any-return]


def resident(
    raw: RawSteps,
    columns: Sequence[Feature],
    numbers: tf.data.Dataset,
    finish: Callable[[Batch], Any],
    device: str,
    batches: int | None,
) -> tf.data.Dataset:
    """The dataset of `device` of finish({name: (B, length, ...) or (B,)}), of which `numbers` gives the windows.

    numbers: int64 (B,), counting the windows of `raw`, from 0. `batches`: how many there are, endlessly many if None.
    """
    gather = gathering(raw, columns, device)

    def batch(some: tf.Tensor) -> Any:
        return finish(gather(some))

    return placed(numbers, batch, device, batches)


def reside(
    chosen: Windows,
    manifest: Manifest,
    columns: Sequence[Feature],
    finish: Callable[[Batch], Any],
    each: Sequence[Share],
    options: LoadOptions,
    course: Course,
) -> Any:
    """What `load` returns where raw steps are held by the devices. Errors: OptionError."""
    starting: list[StreamPosition] = []

    def make(part: int, parts: int, device: str) -> tf.data.Dataset:
        share = each[part]
        raw = read_raw_steps(chosen, manifest, columns, share.numbers, share.places)
        begin = StreamPosition(*course.at(0, options.start_step), options.epochs or 1)
        starting.append(begin)
        numbers = Numbers(share.order, share.windows, share.steps)

        with tf.device(HOST):
            dataset = starts(begin)  # (epoch, step) where this iteration begins
            dataset = dataset.flat_map(numbering(options.epochs))  # (epoch, its first step)
            dataset = dataset.flat_map(epoch_function(numbers, share.steps.part_batch))  # {"number": (B,)}
            dataset.chunks = numbers  # see epoch_function
            dataset = dataset.map(lambda batch: batch["number"]).prefetch(_NUMBERS_AHEAD)  # (B,)
        return resident(raw, columns, dataset, finish, device, None if options.epochs is None else course.cardinality)

    def seek(epoch: int, step: int = 0) -> None:
        for begin in starting:
            begin.seek(*course.at(epoch, step))

    return deliver(options.strategy, make, course, seek)


class Resident(tf.__internal__.types.data.Dataset, tf.distribute.DistributedDataset):  # type: ignore[misc]
    """What a single device iterates. `course`, `steps_per_epoch` and `seek` are as in `Batches`.

    No `tf.data.Dataset`, since whatever one is mapped or batched with runs on the host, and reads host memory. Keras
    iterates a `DistributedDataset` as it is; the other base, which is empty, tells it that there are batches.
    """

    def __init__(self, dataset: tf.data.Dataset, course: Course, seek: Seek) -> None:
        self._dataset, self.course, self._seek = dataset, course, seek

    @property
    def steps_per_epoch(self) -> int:
        """The steps, or global batches, of an epoch."""
        return self.course.steps_per_epoch

    def seek(self, epoch: int, step: int = 0) -> None:
        """Let the next iteration begin with this step of this epoch."""
        self._seek(epoch, step)

    @property
    def element_spec(self) -> Any:
        """As of any dataset."""
        return self._dataset.element_spec

    @property
    def cardinality(self) -> np.int64:
        """How many batches there are, as of any distributed dataset."""
        return np.int64(self.course.cardinality)

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Any:
        return iter(self._dataset)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """What AutoGraph makes of `for batch in dataset` in a `tf.function`."""
        iterator = iter(self)

        def body(element: Any, state: Any) -> tuple[Any, Any]:
            state = reduce_func(state, element.get_value())
            return iterator.get_next_as_optional(), state

        first = iterator.get_next_as_optional()
        _, state = tf.while_loop(
            lambda element, _: element.has_value(), body, [first, initial_state], parallel_iterations=1
        )
        return state


def deliver(strategy: tf.distribute.Strategy | None, make: Make, course: Course, seek: Seek) -> Any:
    """The dataset for a strategy, or none, whose replicas have each their own part, made by `make`, on their device."""
    devices = devices_of(strategy)
    if strategy is None or isinstance(strategy, tf.distribute.OneDeviceStrategy):
        return Resident(make(0, 1, devices[0]), course, seek)

    def replica(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return make(context.input_pipeline_id, context.num_input_pipelines, devices[context.input_pipeline_id])

    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=False,
        experimental_place_dataset_on_device=True,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )
    before = strategy.extended._input_workers_devices  # of other datasets, too, which have one pipeline for all
    try:
        distributed = strategy.distribute_datasets_from_function(replica, options)
    finally:
        strategy.extended._input_workers_devices = before
    return with_course(distributed, course, seek)
