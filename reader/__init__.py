"""Shards in, a shuffled, batched, prefetched `tf.data` stream out.

from reader import load
model.fit(load("out", split="train", batch_size=256, targets="same"), epochs=10, shuffle=False)
"""

from . import object_store  # noqa: F401 first, since it says how TensorFlow is to be loaded
from .resume import Resume
from .stream import load

__all__ = ["Resume", "load"]
