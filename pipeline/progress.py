"""How far a build is: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from shards.manifest import Manifest

if TYPE_CHECKING:
    from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 5.0


class BuildProgress:
    """Told which shards are finished (`on_shards`), shows shards, windows, windows per second and the time left."""

    def __init__(self, planned: Manifest) -> None:
        self._windows = {shard.file: shard.windows for split in planned.splits for shard in split.shards}
        self._total = sum(self._windows.values())
        self._begun = self._last = time.monotonic()
        self._done = -1
        self._kept: int | None = None  # windows that were there to begin with
        self._bar = _bar(self._total) if sys.stderr is not None and sys.stderr.isatty() else None

    def __enter__(self) -> "BuildProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()

    def on_shards(self, finished: set[str]) -> None:
        """Show that these shards, by file name, are finished; the build goes on where nobody looks any more."""
        with suppress(OSError):
            self._show(finished)

    def _show(self, finished: set[str]) -> None:
        windows = sum(self._windows[shard] for shard in finished)
        shards = f"{len(finished)}/{len(self._windows)} shards"
        if self._kept is None:
            self._kept = windows
            if finished:
                print(f"going on with {shards} of a build that was interrupted", file=sys.stderr, flush=True)
        if self._bar is not None:
            self._bar.set_postfix_str(shards, refresh=False)
            self._bar.update(windows - self._bar.n)
            self._bar.refresh()
            return
        now = time.monotonic()
        complete = windows == self._total
        if windows == self._done or (not complete and now - self._last < _SECONDS_BETWEEN_LINES):
            return
        self._last, self._done = now, windows
        speed = (windows - self._kept) / max(now - self._begun, 1e-9)
        left = f", {(self._total - windows) / speed:.0f} s left" if speed > 0 and not complete else ""
        print(
            f"{shards}, {windows:,}/{self._total:,} windows, {speed:,.0f} windows/s{left}", file=sys.stderr, flush=True
        )


def _bar(total: int) -> "tqdm[NoReturn]":
    from tqdm import tqdm  # an optional dependency, which `plan` does without

    return tqdm(total=total, unit=" windows", file=sys.stderr, dynamic_ncols=True, leave=False)
