"""A keyed integer hash: the one source of every order in this project.

Orders come from it and a stable sort, not from a random generator whose stream a new NumPy could change.
"""

import numpy as np
from numpy.typing import NDArray


def keyed_hash(values: NDArray[np.integer], *key: int) -> NDArray[np.uint64]:
    """A 64-bit hash of each integer under a key of integers: splitmix64 chained over the key.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; the constants are those
    of Vigna's splitmix64.c.

    >>> [hex(h) for h in keyed_hash(np.array([0, 1])).tolist()]
    ['0xe220a8397b1dcdaf', '0x910a2dec89025cc1']
    """
    state = np.uint64(0)
    for part in key:
        state = _splitmix64(np.array([part], np.uint64) ^ state)[0]
    return _splitmix64(np.asarray(values).astype(np.uint64) ^ state)


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return result
