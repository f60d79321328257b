"""Memory that is used again, but never while somebody still reads it."""

import gc

import numpy as np
import tensorflow as tf

from shards.memory import Buffers

FLOAT32 = np.dtype(np.float32)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_the_memory_of_a_dropped_array_is_given_out_again() -> None:
    buffers = Buffers(4000, idle=2)
    first = buffers.array((10, 100), FLOAT32)
    place = address(first)
    del first
    assert address(buffers.array((5, 100), FLOAT32)) == place


def test_arrays_in_use_share_no_memory() -> None:
    buffers = Buffers(4000, idle=2)
    arrays = [buffers.array((1000,), FLOAT32) for _ in range(5)]
    for i, array in enumerate(arrays):
        array[:] = i
    assert [float(array.mean()) for array in arrays] == [0, 1, 2, 3, 4]


def test_a_view_keeps_its_memory() -> None:
    buffers = Buffers(4000, idle=2)
    array = buffers.array((1000,), FLOAT32)
    array[:] = 7
    view = array[10:20]
    del array
    other = buffers.array((1000,), FLOAT32)
    other[:] = 8
    assert view.tolist() == [7] * 10


def test_memory_beyond_the_idle_pieces_is_given_back_to_the_system() -> None:
    buffers = Buffers(4000, idle=2)
    arrays = [buffers.array((1000,), FLOAT32) for _ in range(5)]
    del arrays
    gc.collect()
    assert len(buffers._free) == 2


def test_tensorflow_takes_the_memory_without_a_copy_and_tensors_keep_it() -> None:
    buffers = Buffers(2**22, idle=4)
    places = []

    def fill(i: np.int64) -> np.ndarray:
        array = buffers.array((1024, 1024), FLOAT32)
        array[:] = i
        places.append(address(array))
        return array

    dataset = tf.data.Dataset.range(12).map(lambda i: tf.numpy_function(fill, [i], tf.float32))
    kept = [tensor for i, tensor in enumerate(dataset) if i % 3 == 0]
    assert [float(tf.reduce_max(tensor)) for tensor in kept] == [0, 3, 6, 9]
    assert [float(tf.reduce_min(tensor)) for tensor in kept] == [0, 3, 6, 9]
    assert [address(np.asarray(memoryview(tensor))) for tensor in kept] == places[::3]
    assert len(set(places)) < 12
