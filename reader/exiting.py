"""Python's end while streams still run: no thread of TensorFlow may be within Python, or come back to it, by then.

Python ends such a thread where it stands, and whoever deletes its iterator waits for it for ever.
"""

import atexit
import time
from collections.abc import Callable
from threading import Lock
from typing import Any

_QUIET = 0.1  # seconds without a call, after which none is to come: what is prefetched is full
_MOST = 10.0


class _Calls:
    """Counts the calls under way; from the end on, refuses them, so that those who ask are soon satisfied."""

    def __init__(self) -> None:
        self._lock, self._running, self._last, self._ending = Lock(), 0, 0.0, False

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            self._running += 1
        try:
            if self._ending:
                raise RuntimeError("Python is about to end")
            return function(*args)
        finally:
            with self._lock:
                self._running, self._last = self._running - 1, time.monotonic()

    def end(self) -> None:
        self._ending = True
        end = time.monotonic() + _MOST
        while time.monotonic() < end and (self._running or time.monotonic() < self._last + _QUIET):
            time.sleep(0.01)


_calls = _Calls()
atexit.register(_calls.end)


def until_exit(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, for TensorFlow's threads to call."""
    return lambda *args: _calls.call(function, *args)
