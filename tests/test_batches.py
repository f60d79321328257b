"""The dataset that `load` returns: its elements are TensorFlow's own, only quicker, and so is all else about it."""

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere, SaveEpisodes
from reader import load
from reader.batches import Batches, _QuickIterator, packing

WINDOWS, BATCH = 46, 8


class Pair(NamedTuple):
    x: Any
    y: Any


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere) -> Path:
    root = tmp_path_factory.mktemp("batches")
    inputs = save_episodes(root / "in", [np.arange(50, dtype=np.float32)])
    build_here(inputs, root / "out", window_length=5, shift=1, num_shards=3)
    return root / "out"


def own(dataset: Batches) -> Any:
    """TensorFlow's iterator over the same epoch."""
    return tf.data.Dataset.__iter__(dataset)


STRUCTURES: dict[str, Callable[[Any], Any]] = {
    "dict": lambda b: b,
    "dict_out_of_order": lambda b: {"z": b["window"], "a": b["start"], "m": b["episode"]},
    "tensor": lambda b: b["window"],
    "pair": lambda b: (b["window"], b["window"]),
    "one_tuple": lambda b: (b["window"],),
    "nested": lambda b: ({"y": b["window"], "x": (b["start"], {"b": b["episode"], "a": b["start"]})}, b["start"]),
    "empty_parts": lambda b: (b["window"], {}, (), {"a": ()}),
    "text": lambda b: (tf.strings.as_string(b["start"]), b["window"]),
    "unknown_length": lambda b: (tf.boolean_mask(b["window"], b["start"] > 20), b["start"]),
}
OTHER_STRUCTURES: dict[str, Callable[[Any], Any]] = {
    "namedtuple": lambda b: Pair(b["window"], {"b": b["start"], "a": b["episode"]}),
    "namedtuple_in_dict": lambda b: {"b": Pair(b["window"], b["start"]), "a": b["episode"]},
    "ordered": lambda b: OrderedDict([("b", b["window"]), ("a", b["start"])]),
    "ragged": lambda b: (b["start"], tf.RaggedTensor.from_tensor(b["window"])),
    "sparse": lambda b: {"s": tf.sparse.from_dense(b["window"])},
    "none": lambda b: (b["window"], None),
    "dataset": lambda b: (b["start"], tf.data.Dataset.from_tensor_slices(b["window"])),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tf.RaggedTensor | tf.SparseTensor):
        return type(a) is type(b) and same(tf.nest.flatten(a, True), tf.nest.flatten(b, True))
    if isinstance(a, tf.data.Dataset):
        return same([*a], [*b])
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and same([*a.values()], [*b.values()])
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.numpy().tolist() == b.numpy().tolist())


@pytest.mark.parametrize("name", [*STRUCTURES, *OTHER_STRUCTURES])
def test_elements_are_those_of_tensorflows_own_iterator(folder: Path, name: str) -> None:
    targets = {**STRUCTURES, **OTHER_STRUCTURES}[name]
    dataset = load(folder, batch_size=BATCH, provenance=True, targets=targets)
    iterator = iter(dataset)
    assert isinstance(iterator, _QuickIterator) == (name in STRUCTURES)
    found = list(iterator)
    dataset.seek(0)
    expected = list(own(dataset))
    assert len(found) == 6
    assert same(found, expected)


def test_dicts_keep_the_order_of_their_keys(folder: Path) -> None:
    (first, *_) = load(folder, batch_size=BATCH, targets=lambda b: {"z": b["window"], "a": {"y": 0, "b": 1}})
    assert list(first) == ["z", "a"]
    assert list(first["a"]) == ["y", "b"]
    assert int(first["a"]["y"]) == 0


def test_there_is_no_packing_of_what_is_neither_dict_nor_tuple() -> None:
    spec = tf.TensorSpec(())
    assert packing(Pair(spec, spec)) is None
    assert packing({"a": (spec, Pair(spec, spec))}) is None
    assert packing((spec, tf.RaggedTensorSpec((None, None)))) is None
    pack = packing({"b": (spec, ()), "a": {}})
    assert pack is not None
    assert pack([7]) == {"b": (7, ()), "a": {}}


def test_an_iterator_that_has_ended_stays_so(folder: Path) -> None:
    iterator = iter(load(folder, batch_size=BATCH))
    assert len(list(iterator)) == 6
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    assert next(iterator, "none left") == "none left"


def test_the_other_ways_of_asking_an_iterator_for_the_next(folder: Path) -> None:
    expected = [batch["window"].numpy() for batch in load(folder, batch_size=BATCH)]
    iterator = iter(load(folder, batch_size=BATCH))
    found = [
        iterator.get_next()["window"],
        iterator.get_next_as_optional().get_value()["window"],
        next(iterator)["window"],
        *(batch["window"] for batch in iterator),
    ]
    assert all(map(np.array_equal, found, expected))
    assert not bool(iterator.get_next_as_optional().has_value())
    with pytest.raises(tf.errors.OutOfRangeError):
        iterator.get_next()
    assert iterator.element_spec == load(folder, batch_size=BATCH).element_spec


def test_batches_are_iterated_in_a_function(folder: Path) -> None:
    dataset = load(folder, batch_size=BATCH)

    @tf.function
    def over_the_dataset() -> tf.Tensor:
        total = tf.constant(0.0)
        for batch in dataset:
            total += tf.reduce_sum(batch["window"])
        return total

    expected = float(sum(sum(range(i, i + 5)) for i in range(WINDOWS)))
    assert [float(over_the_dataset()) for _ in range(3)] == [expected] * 3


def test_an_iterator_is_an_argument_of_a_function(folder: Path) -> None:
    dataset = load(folder, batch_size=BATCH)

    @tf.function
    def two_steps(iterator: Any) -> tf.Tensor:
        return next(iterator)["window"][:, 0], next(iterator)["window"][:, 0]

    @tf.function
    def the_rest(iterator: Any) -> tf.Tensor:
        count = tf.constant(0)
        for batch in iterator:
            count += tf.shape(batch["window"])[0]
        return count

    expected = [batch["window"][:, 0].numpy() for batch in dataset]
    dataset.seek(0)
    iterator = iter(dataset)
    found = [*two_steps(iterator), next(iterator)["window"][:, 0], *two_steps(iterator)]
    assert all(map(np.array_equal, found, expected))
    assert int(the_rest(iterator)) == 6
    with pytest.raises(tf.errors.OutOfRangeError):
        two_steps(iterator)


def test_an_iterator_is_seen_by_a_function(folder: Path) -> None:
    dataset = load(folder, batch_size=BATCH)
    iterator = iter(dataset)

    @tf.function
    def step() -> tf.Tensor:
        return next(iterator)["window"]

    found = [step().numpy() for _ in range(6)]
    dataset.seek(0)
    assert all(map(np.array_equal, found, [batch["window"] for batch in dataset]))


def test_it_has_a_length_and_is_true(folder: Path) -> None:
    dataset = load(folder, batch_size=BATCH, epochs=2)
    assert len(dataset) == int(dataset.cardinality()) == 12
    assert dataset.steps_per_epoch == 6
    assert isinstance(dataset, tf.data.Dataset)
    endless = load(folder, batch_size=BATCH, epochs=None)
    assert dataset
    assert endless
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    with pytest.raises(TypeError, match="infinite"):
        len(endless)


def test_what_is_made_of_it_is_as_of_any_dataset(folder: Path) -> None:
    def dataset() -> Any:
        return load(folder, batch_size=BATCH, epochs=2, targets=lambda b: b["window"][:, 0])

    whole = [batch.numpy() for batch in dataset()]
    assert [len(batch) for batch in whole] == [8, 8, 8, 8, 8, 6] * 2
    made: dict[str, tuple[Any, list[Any], int]] = {
        "map": (dataset().map(lambda x: x + 1), [x + 1 for x in whole], 12),
        "take": (dataset().take(5), whole[:5], 5),
        "skip": (dataset().skip(7), whole[7:], 5),
        "prefetch": (dataset().prefetch(3), whole, 12),
        "unbatch": (dataset().unbatch(), [*np.concatenate(whole)], tf.data.UNKNOWN_CARDINALITY),
        "rebatch": (dataset().rebatch(46), [*np.concatenate(whole).reshape(2, 46)], tf.data.UNKNOWN_CARDINALITY),
        "with_options": (dataset().with_options(tf.data.Options()), whole, 12),
        "concatenate": (dataset().concatenate(dataset()), whole * 2, 24),
        "enumerate": (dataset().enumerate().map(lambda _, x: x), whole, 12),
        "cache": (dataset().cache(), whole, 12),
    }
    for name, (found, expected, count) in made.items():
        assert int(found.cardinality()) == count, name
        elements = list(found.as_numpy_iterator())
        assert len(elements) == len(expected), name
        assert all(map(np.array_equal, elements, expected)), name
    zipped = tf.data.Dataset.zip((dataset(), dataset()))
    assert len(zipped) == 12
    assert all(np.array_equal(x, y) for x, y in zipped)
    assert [batch.shape for batch in dataset().take(4).batch(2)] == [(2, 8), (2, 8)]
    twice = [x.numpy() for x in dataset().repeat(2)]
    assert len(twice) == 24
    assert all(map(np.array_equal, twice[:12], whole))
    assert not all(map(np.array_equal, twice[12:], whole))


def test_options_are_those_of_the_dataset_it_holds(folder: Path) -> None:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 3
    dataset = load(folder, batch_size=BATCH)
    assert dataset.options().deterministic is True
    assert dataset.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    changed = dataset.with_options(options)
    assert changed.options().threading.private_threadpool_size == 3
    assert changed.options().deterministic is True
    assert sum(len(batch["window"]) for batch in changed) == WINDOWS


def test_arrays_instead_of_tensors(folder: Path) -> None:
    dataset = load(folder, batch_size=BATCH, targets="same")
    arrays = list(dataset.as_numpy_iterator())
    dataset.seek(0)
    assert all(isinstance(x, np.ndarray) and isinstance(y, np.ndarray) for x, y in arrays)
    assert all(np.array_equal(x, tensor) for (x, _), (tensor, _) in zip(arrays, dataset, strict=True))


def test_eager_operations_may_be_asynchronous(folder: Path) -> None:
    dataset = load(folder, batch_size=BATCH)
    expected = [batch["window"].numpy() for batch in dataset]
    dataset.seek(0)
    tf.config.experimental.set_synchronous_execution(False)
    try:
        iterator = iter(dataset)
        assert not isinstance(iterator, _QuickIterator)
        found = [batch["window"].numpy() for batch in iterator]
    finally:
        tf.config.experimental.set_synchronous_execution(True)
    assert len(found) == 6
    assert all(map(np.array_equal, found, expected))


def windows_alone(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {"window": batch["window"]}


@pytest.mark.parametrize("made", [lambda d: d, lambda d: d.map(windows_alone).prefetch(1)])
def test_an_iterator_keeps_its_dataset_and_nothing_else_does(folder: Path, made: Any) -> None:
    dataset = load(folder, batch_size=BATCH)
    gone = weakref.ref(dataset)
    iterator = iter(made(dataset))
    next(iterator)
    del dataset
    gc.collect()
    assert sum(len(batch["window"]) for batch in iterator) == WINDOWS - BATCH
    del iterator
    gc.collect()
    assert gone() is None


def test_iterators_in_several_threads_are_different_epochs(folder: Path) -> None:
    dataset = load(folder, batch_size=BATCH, provenance=True)

    def starts(_: int) -> tuple[int, ...]:
        return tuple(int(start) for batch in dataset for start in batch["start"])

    with ThreadPoolExecutor(4) as executor:
        epochs = list(executor.map(starts, range(12)))
    assert all(sorted(epoch) == list(range(WINDOWS)) for epoch in epochs)
    dataset.seek(0)
    assert set(epochs) == {starts(i) for i in range(12)}
    assert len(set(epochs)) == 12


def test_one_iterator_is_shared_by_several_threads(folder: Path) -> None:
    iterator = iter(load(folder, batch_size=1, provenance=True))
    with ThreadPoolExecutor(4) as executor:
        shares = list(executor.map(lambda _: [int(batch["start"][0]) for batch in iterator], range(4)))
    assert sorted(start for share in shares for start in share) == list(range(WINDOWS))


def test_an_error_of_a_function_of_the_user_is_seen(folder: Path) -> None:
    def fail(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"window": tf.debugging.check_numerics(batch["window"] / 0.0, "no number")}

    with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
        next(iter(load(folder, batch_size=BATCH, map_fn=fail)))
