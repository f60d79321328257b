"""Datasets of one device: their elements are computed there, from what a dataset of the host gives.

A `GeneratorDataset`, a kernel that runs on any device, fetches elements from an iterator on the host by remote calls
and computes in its function. TensorFlow's own way onto a device, `prefetch_to_device`, is made the same way.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .batches import iterate
from .capacity import HOST
from .epochs import plain

_AHEAD = 1  # elements on the device besides the one in use and the one being computed


class Placed(tf.data.Dataset):  # type: ignore[misc]
    """A dataset of one device, where its variant lies. It knows how many elements it has, which its kernel does not."""

    def __init__(self, variant: tf.Tensor, spec: Any, batches: int | None, needed: Any) -> None:
        self._spec, self._batches, self._needed = spec, batches, needed
        super().__init__(variant)

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    @property
    def element_spec(self) -> Any:
        """As of any dataset."""
        return self._spec

    def __iter__(self) -> Any:
        return iterate(self)

    def cardinality(self) -> tf.Tensor:
        """As of any dataset."""
        with tf.device(HOST):
            return tf.constant(tf.data.INFINITE_CARDINALITY if self._batches is None else self._batches, tf.int64)


def placed(
    numbers: tf.data.Dataset, function: Callable[[tf.Tensor], Any], device: str, batches: int | None
) -> tf.data.Dataset:
    """The dataset of function(element of `numbers`), computed on a device."""
    raw, spec = tf.raw_ops, numbers.element_spec
    handle = tf.TensorSpec([], tf.string)
    with tf.device(HOST):
        host = tf.constant(HOST)
        wrapped = raw.WrapDatasetVariant(input_handle=tf.data.experimental.to_variant(numbers))
    kinds = {"output_types": [spec.dtype], "output_shapes": [spec.shape]}

    def begin() -> tf.Tensor:
        iterator = raw.AnonymousIterator(**kinds)
        dataset = raw.UnwrapDatasetVariant(input_handle=wrapped)
        with tf.control_dependencies([raw.MakeIterator(dataset=dataset, iterator=iterator)]):
            return raw.IteratorToStringHandle(resource_handle=iterator)

    def following(name: tf.Tensor) -> list[tf.Tensor]:
        return raw.IteratorGetNext(iterator=raw.IteratorFromStringHandleV2(string_handle=name, **kinds), **kinds)  # type: ignore[no-any-return]

    def end(name: tf.Tensor) -> tf.Tensor:
        iterator = raw.IteratorFromStringHandleV2(string_handle=name, **kinds)
        with tf.control_dependencies([raw.DestroyResourceOp(resource=iterator, ignore_lookup_error=True)]):
            return tf.constant(0, tf.int64)

    def concrete(called: Callable[..., Any], *signature: Any, **options: Any) -> Any:
        return tf.function(called, input_signature=signature, **options).get_concrete_function()

    on_host = [concrete(begin, autograph=False)]
    on_host += [concrete(called, handle, autograph=False) for called in (following, end)]

    def remotely(i: int, arguments: list[tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
        f = on_host[i]
        return raw.RemoteCall(target=host, args=arguments + f.captured_inputs, Tout=[dtype], f=f)  # type: ignore[no-any-return]

    def element(name: tf.Tensor) -> Any:
        return function(tf.ensure_shape(plain(remotely)(1, [name], spec.dtype)[0], spec.shape))

    ints = {"experimental_ints_on_device": True}  # as the functions of prefetch_to_device have it
    started = concrete(lambda: remotely(0, [], tf.string), autograph=False)
    ended = concrete(lambda name: remotely(2, [name], tf.int64), handle, autograph=False)
    with tf.device(device):
        made = concrete(element, handle, experimental_attributes=ints)
        elements = made.structured_outputs
        flat = tf.nest.flatten(elements)
        variant = raw.GeneratorDataset(
            init_func_other_args=started.captured_inputs,
            next_func_other_args=made.captured_inputs,
            finalize_func_other_args=ended.captured_inputs,
            init_func=started,
            next_func=made,
            finalize_func=ended,
            output_types=[part.dtype for part in flat],
            output_shapes=[part.shape for part in flat],
        )
    elements = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), elements)
    options = tf.data.Options()  # there is nothing to optimize, and TensorFlow would warn that it cannot
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    dataset = tf.data.experimental.from_variant(variant, elements).prefetch(_AHEAD).with_options(options)
    needed = (numbers, wrapped, on_host, started, made, ended)
    return Placed(tf.data.experimental.to_variant(dataset), elements, batches, needed)
