"""Which steps each window holds: the arithmetic alone, on integers or int64 arrays.

Window i of an episode of T steps holds the steps [i * shift, i * shift + length), for every i for which these all
exist. `shift` means what it means in `tf.data.Dataset.window`; windows never cross an episode.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Steps = TypeVar("Steps", int, NDArray[np.int64])


def count_windows(steps: Steps, length: int, shift: int) -> Steps:
    """How many windows an episode of `steps` steps has.

    >>> [count_windows(steps, length=4, shift=2) for steps in (3, 4, 5, 6)]
    [0, 1, 1, 2]
    """
    # (steps - length) // shift is -1 or less below one window, and is clipped there, never counted.
    if isinstance(steps, np.ndarray):
        return np.maximum((steps - length) // shift + 1, 0)
    return max((steps - length) // shift + 1, 0)


def count_covered(windows: Steps, length: int, shift: int) -> Steps:
    """How many steps of an episode lie in at least one of its `windows` windows.

    >>> [count_covered(windows, length=4, shift=2) for windows in (0, 1, 2)]
    [0, 4, 6]
    >>> count_covered(3, length=2, shift=10)
    6
    """
    overlapping = (windows - 1) * min(shift, length) + length
    if isinstance(windows, np.ndarray):
        return np.where(windows > 0, overlapping, 0)
    return overlapping if windows > 0 else 0
