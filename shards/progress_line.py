"""How far a check or a copy is, on stderr: a line that is written over on a terminal, now and then one elsewhere."""

import sys
import time
from threading import Lock

_QUIET_SECONDS = 2.0  # whatever ends sooner shows nothing
_SECONDS_BETWEEN = {True: 0.2, False: 10.0}  # by whether it is a terminal


class ProgressLine:
    """Shows how many of `total` bytes are done, MB/s, and the time left."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = time.monotonic()
        self._last = self._begun + _QUIET_SECONDS - _SECONDS_BETWEEN[False]
        self._shown = False
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def show(self, done: int) -> None:
        """Show how many bytes are done, if it is time to."""
        now = time.monotonic()
        seconds = now - self._begun
        due = now - self._last >= _SECONDS_BETWEEN[self._terminal]
        if sys.stderr is None or seconds < _QUIET_SECONDS or not due or not done:
            return
        self._last, self._shown = now, True
        left = (self._total - done) * seconds / done
        line = f"{done / 1e6:,.0f}/{self._total / 1e6:,.0f} MB, {done / seconds / 1e6:,.0f} MB/s, {left:.0f} s left"
        begin, end = ("\r", "\x1b[K") if self._terminal else ("", "\n")
        print(begin + line, end=end, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away from a terminal."""
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Copying:
    """A progress line that is told, by several threads, of bytes as they are copied."""

    def __init__(self, total: int) -> None:
        self._line, self._lock, self._done = ProgressLine(total), Lock(), 0

    def __enter__(self) -> "Copying":
        return self

    def __exit__(self, *error: object) -> None:
        self._line.clear()

    def advance(self, nbytes: int) -> None:
        """So many bytes more are copied."""
        with self._lock:
            self._done += nbytes
            self._line.show(self._done)
