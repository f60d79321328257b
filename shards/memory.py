"""Memory for large arrays that is used again: fresh memory costs a page fault every 4 KiB, more than a copy into it."""

import mmap
import weakref
from collections import deque
from contextlib import suppress

import numpy as np

_HUGE_PAGE = 2**21


class Buffers:
    """Arrays of up to `nbytes` bytes in page-aligned memory (which TensorFlow takes over without a copy).

    The memory of an array is given out again once the array is gone, which is when its last reader is, a tensor
    included; so nobody's data are overwritten, and whoever keeps all tensors keeps all memory. At most `idle` pieces of
    memory wait to be used; safe to use from several threads.
    """

    def __init__(self, nbytes: int, idle: int) -> None:
        self._nbytes = nbytes if nbytes < _HUGE_PAGE else -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE
        self._idle = idle
        self._free: deque[mmap.mmap] = deque()

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of undefined content."""
        try:
            memory = self._free.pop()  # the last one that came back is the likeliest to be in a cache
        except IndexError:
            memory = mmap.mmap(-1, max(self._nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if self._nbytes >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a kernel without huge pages
                    memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.ndarray(shape, dtype, memory)  # a new object each time: TensorFlow counts references to it
        weakref.finalize(array, self._back, memory).atexit = False
        return array

    def _back(self, memory: mmap.mmap) -> None:
        if len(self._free) < self._idle:
            self._free.append(memory)
