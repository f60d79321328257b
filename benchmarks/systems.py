"""The systems that `bench_stream.py` compares: functions from `Data` to an iterable of shuffled batches.

Each iteration is one epoch; a batch is (x, x), or x where `data.pair` is False, with x of shape (B, length).
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from numpy.typing import NDArray

from data import Data
from reader import load
from shards import open_dataset

_SHUFFLE_BUFFER = 8192
_AUTOTUNE = tf.data.AUTOTUNE

Batches = Iterable[Any]


class Epochs:
    """An iterable of batches from a function that starts an epoch."""

    def __init__(self, start: Callable[[], Iterator[Any]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return self._start()


class SegmentSequence(keras.utils.PyDataset):
    """Segments (file, start) of arrays in memory, cut and stacked batch by batch, as users of Keras write it."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data, self.segments = data, data.segments.copy()
        self.on_epoch_end()

    def __len__(self) -> int:
        return -(-len(self.segments) // self.data.shape.batch)

    def __getitem__(self, index: int) -> Any:
        arrays, length, size = self.data.arrays, self.data.shape.length, self.data.shape.batch
        chosen = self.segments[index * size : (index + 1) * size]
        return _pair(np.stack([arrays[file][start : start + length] for file, start in chosen]), self.data)

    def on_epoch_end(self) -> None:
        """Shuffle for the next epoch."""
        random.shuffle(self.segments)


def sequence(data: Data) -> Batches:
    """Keras Sequence over arrays in RAM, its bare __getitem__."""
    batches = SegmentSequence(data)

    def epoch() -> Iterator[Any]:
        yield from batches
        batches.on_epoch_end()

    return Epochs(epoch)


def fit(data: Data) -> Batches:
    """The same as Keras delivers it to `fit`: the baseline."""
    adapter = PyDatasetAdapter(SegmentSequence(data), shuffle=True)  # `fit` shuffles unless told not to
    batches = adapter.get_tf_dataset()
    if data.strategy is not None:
        batches = data.strategy.experimental_distribute_dataset(batches)

    def epoch() -> Iterator[Any]:
        adapter.on_epoch_begin()
        try:
            yield from batches if data.pair else (x for (x,) in batches)
        finally:
            adapter.on_epoch_end()

    return Epochs(epoch)


def generator(data: Data) -> Batches:
    """Dataset.from_generator, window by window, batched."""
    length = data.shape.length

    def windows() -> Iterator[NDArray[np.float32]]:
        for start in np.random.default_rng().permutation(data.starts).tolist():
            yield data.steps[start : start + length]

    spec = tf.TensorSpec((length,), tf.float32)
    return _batched(tf.data.Dataset.from_generator(windows, output_signature=spec), data)


def flat_map(data: Data) -> Batches:
    """Ragged tensor, window().flat_map()."""
    length = data.shape.length
    lengths = [len(episode) for episode in data.episodes]
    dataset = tf.data.Dataset.from_tensor_slices(tf.RaggedTensor.from_row_lengths(data.steps, lengths))

    def windows(episode: tf.Tensor) -> tf.data.Dataset:
        steps = tf.data.Dataset.from_tensor_slices(episode)
        return steps.window(length, data.shape.shift, drop_remainder=True).flat_map(lambda window: window.batch(length))

    dataset = dataset.shuffle(len(lengths)).flat_map(windows)
    dataset = dataset.shuffle(data.shape.batch)  # a larger buffer would take minutes to fill
    return _batched(dataset.map(lambda window: tf.ensure_shape(window, (length,))), data)


def slice_map(data: Data) -> Batches:
    """One constant array, shuffled starts, tf.slice map, batched."""
    steps = tf.constant(data.steps)
    dataset = tf.data.Dataset.from_tensor_slices(data.starts).shuffle(data.windows)
    dataset = dataset.map(lambda start: tf.slice(steps, [start], [data.shape.length]), num_parallel_calls=_AUTOTUNE)
    return _batched(dataset, data)


def timeseries(data: Data) -> Batches:
    """keras.utils.timeseries_dataset_from_array, shuffled, one episode after the other."""
    # Given all episodes as one array, it would cut windows across their ends.
    each = [
        keras.utils.timeseries_dataset_from_array(
            episode, None, data.shape.length, sequence_stride=data.shape.shift, batch_size=None, shuffle=True
        )
        for episode in data.episodes
    ]
    dataset = each[0]
    for other in each[1:]:
        dataset = dataset.concatenate(other)
    return _batched(dataset.map(lambda window: tf.ensure_shape(window, (data.shape.length,))), data)


def textbook(data: Data) -> Batches:
    """Textbook TFRecord on our shards: interleave, parse_single_example, shuffle(8192), batch, prefetch."""
    shards = open_dataset(data.folder)["train"].split.shards
    features = {"window": tf.io.FixedLenFeature((data.shape.length,), tf.float32)}
    dataset = tf.data.Dataset.from_tensor_slices([str(data.folder / shard.file) for shard in shards])
    dataset = dataset.shuffle(len(shards))
    dataset = dataset.interleave(tf.data.TFRecordDataset, num_parallel_calls=_AUTOTUNE, deterministic=False)
    dataset = dataset.map(
        lambda record: tf.io.parse_single_example(record, features)["window"], num_parallel_calls=_AUTOTUNE
    )
    return _batched(dataset.shuffle(_SHUFFLE_BUFFER), data)


def tfds(data: Data) -> Batches:
    """TensorFlow Datasets on our shards: shuffle_files, shuffle(8192), batch, prefetch."""
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(data.folder)
    only_windows = tensorflow_datasets.decode.PartialDecoding({"window": True})
    dataset = builder.as_dataset(split="train", shuffle_files=True, decoders=only_windows)
    dataset = dataset.map(lambda example: example["window"], num_parallel_calls=_AUTOTUNE)
    return _batched(dataset.shuffle(_SHUFFLE_BUFFER), data)


def grain(data: Data) -> Batches:
    """Grain on our shards through shards.open_dataset: shuffled, batched, read by its 16 threads."""
    import grain

    dataset = grain.MapDataset.source(open_dataset(data.folder)["train"]).seed(0).shuffle()
    dataset = dataset.map(lambda example: example["window"]).batch(data.shape.batch)
    if data.pair:
        dataset = dataset.map(lambda x: (x, x))
    return Epochs(lambda: iter(dataset.to_iter_dataset()))


def ours(data: Data, **options: Any) -> Batches:
    """Ours: reader.load."""
    targets = "same" if data.pair else (lambda batch: batch["window"])
    return load(data.folder, batch_size=data.shape.batch, targets=targets, strategy=data.strategy, **options)


def resident(data: Data) -> Batches:
    """Ours, raw steps in device memory: resident=True."""
    return ours(data, resident=True)


def numpy_shards(data: Data) -> Batches:
    """Ours without tf.data: shards.open_dataset, random batches in bare Python."""
    windows = open_dataset(data.folder)["train"]
    return Epochs(lambda: (_pair(windows[chosen]["window"], data) for chosen in _index_batches(data)))


def numpy_gather(data: Data) -> Batches:
    """Limit: NumPy fancy gather from one array in RAM."""
    windows = np.lib.stride_tricks.sliding_window_view(data.steps, data.shape.length)
    return Epochs(lambda: (_pair(windows[data.starts[chosen]], data) for chosen in _index_batches(data)))


def memcpy(data: Data) -> Batches:
    """Limit: the same batch copied to the same place, in cache."""
    source = np.ones((data.shape.batch, data.shape.length), np.float32)
    target = np.empty_like(source)

    def epoch() -> Iterator[Any]:
        for _ in range(data.windows // len(source) + 1):
            np.copyto(target, source)
            yield _pair(target, data)

    return Epochs(epoch)


def _batched(windows: tf.data.Dataset, data: Data) -> tf.data.Dataset:
    """Batches of a dataset of windows."""
    batches = windows.batch(data.shape.batch)
    if data.pair:
        batches = batches.map(lambda x: (x, x))
    return batches.prefetch(_AUTOTUNE)


def _pair(x: NDArray[np.float32], data: Data) -> Any:
    return (x, x) if data.pair else x


def _index_batches(data: Data) -> Iterator[NDArray[np.int64]]:
    order = np.random.default_rng().permutation(data.windows)
    for begin in range(0, len(order), data.shape.batch):
        yield order[begin : begin + data.shape.batch]


SYSTEMS: dict[str, Callable[[Data], Batches]] = {
    "sequence": sequence,
    "fit": fit,
    "generator": generator,
    "flat_map": flat_map,
    "slice_map": slice_map,
    "timeseries": timeseries,
    "textbook": textbook,
    "tfds": tfds,
    "grain": grain,
    "ours": ours,
    "resident": resident,
    "numpy_shards": numpy_shards,
    "numpy_gather": numpy_gather,
    "memcpy": memcpy,
}
BASELINE = "fit"
UNCHECKED = ("memcpy",)  # it delivers no windows
DISTRIBUTED = ("fit", "ours", "resident")  # those that replicas can share
