"""Epochs one after the other: where each iteration begins, how it goes on, and how many batches TensorFlow expects."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from reader.epochs import Course, StreamPosition, counted, numbering, starts


def numbers(dataset: tf.data.Dataset, most: int = 200) -> list[tuple[int, int]]:
    return [(int(epoch), int(step)) for epoch, step in dataset.take(most).as_numpy_iterator()]


def test_each_iteration_begins_after_the_epochs_of_the_one_before() -> None:
    place = StreamPosition(4, 7, epochs=3)
    assert [place.take() for _ in range(3)] == [(4, 7), (7, 0), (10, 0)]


def test_a_place_that_is_sought_is_the_next_one() -> None:
    place = StreamPosition(0, 0, epochs=1)
    place.take()
    place.seek(9, 2)
    assert [place.take() for _ in range(2)] == [(9, 2), (10, 0)]
    place.seek(0, 1)
    assert place.take() == (0, 1)


def test_places_taken_in_several_threads_are_all_different() -> None:
    place = StreamPosition(0, 5, epochs=2)
    with ThreadPoolExecutor(8) as executor:
        taken = list(executor.map(lambda _: place.take(), range(2000)))
    assert sorted(taken) == [(0, 5), *((2 * i, 0) for i in range(1, 2000))]


def test_an_iteration_takes_its_place_when_its_first_element_is_asked_for() -> None:
    place = StreamPosition(3, 1, epochs=1)
    dataset = starts(place)
    assert [spec.shape for spec in dataset.element_spec] == [(), ()]
    waiting, unused = iter(dataset), iter(dataset)
    assert numbers(dataset) == [(3, 1)]
    assert [int(number) for number in next(waiting)] == [4, 0]
    del unused
    assert numbers(dataset) == [(5, 0)]


def test_only_the_first_epoch_begins_in_the_middle() -> None:
    dataset = starts(StreamPosition(2, 5, epochs=3)).flat_map(numbering(3))
    assert numbers(dataset) == [(2, 5), (3, 0), (4, 0)]
    assert numbers(dataset) == [(5, 0), (6, 0), (7, 0)]


def test_one_epoch_is_one_pair() -> None:
    dataset = starts(StreamPosition(0, 0, epochs=1)).flat_map(numbering(1))
    assert [numbers(dataset) for _ in range(3)] == [[(0, 0)], [(1, 0)], [(2, 0)]]


def test_epochs_without_an_end_go_on() -> None:
    dataset = starts(StreamPosition(6, 2, epochs=1)).flat_map(numbering(None))
    assert numbers(dataset, 200) == [(6, 2), *((epoch, 0) for epoch in range(7, 206))]
    assert numbers(dataset, 2) == [(7, 0), (8, 0)]


def of_unknown_size(count: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(100).filter(lambda i: i < count)


def test_how_many_there_are_is_known() -> None:
    dataset = counted(of_unknown_size(7), 7)
    assert len(dataset) == int(dataset.cardinality()) == 7
    assert [int(i) for i in dataset] == list(range(7))


@pytest.mark.parametrize("batches", [7, None])
def test_how_many_there_are_is_known_of_what_is_made_of_it(batches: int | None) -> None:
    dataset = counted(of_unknown_size(7), batches)
    expected = tf.data.INFINITE_CARDINALITY if batches is None else batches
    for made in (dataset.map(lambda i: i + 1), dataset.prefetch(2), dataset.with_options(tf.data.Options())):
        assert int(made.cardinality()) == expected
    assert int(dataset.take(3).cardinality()) == 3
    assert int(dataset.repeat(2).cardinality()) == (tf.data.INFINITE_CARDINALITY if batches is None else 14)


def test_fewer_than_said_are_no_error_and_more_are_not_taken() -> None:
    assert [int(i) for i in counted(of_unknown_size(4), 7)] == [0, 1, 2, 3]
    assert [int(i) for i in counted(of_unknown_size(0), 7)] == []
    assert [int(i) for i in counted(of_unknown_size(9), 7)] == list(range(7))


def test_an_endless_dataset_that_ends_after_all_is_no_error() -> None:
    dataset = counted(of_unknown_size(4), None)
    assert [int(i) for i in dataset] == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="infinite"):
        len(dataset)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: {"b": i, "a": (i, tf.fill([i, 2], 1.5))},
        lambda i: (tf.strings.as_string(i), ()),
        lambda i: tf.RaggedTensor.from_row_lengths(tf.range(i), [i]),
        lambda i: tf.sparse.from_dense(tf.fill([3], i)),
        lambda i: tf.numpy_function(lambda j: np.zeros((2, 3), np.float32), [i], tf.float32),
        lambda i: (i, None),
    ],
    ids=["dict", "text", "ragged", "sparse", "unknown_rank", "none"],
)
def test_elements_of_any_structure_can_be_counted(make: object) -> None:
    dataset = of_unknown_size(3).map(make)
    same = counted(dataset, 3)
    assert same.element_spec == dataset.element_spec
    assert len(same) == len(list(same)) == 3


def test_a_course_has_so_many_steps() -> None:
    assert Course(steps_per_epoch=5, epochs=3, identity="").cardinality == 15
    assert Course(steps_per_epoch=5, epochs=None, identity="").cardinality == tf.data.INFINITE_CARDINALITY
