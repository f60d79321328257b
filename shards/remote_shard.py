"""A shard at a URL, where each range that is read is a request."""

import time
from collections.abc import Iterable

from .errors import ShardError
from .files import FileState
from .remote import RemoteFiles, why

_SECONDS_BETWEEN_LOOKS = 60.0  # a request each, for every shard that is read from


class RemoteShard:
    """Reads a shard, and tells when it has been replaced: that is looked for once a minute.

    Safe to use from several threads. Errors: ShardError, which names the file, from every method.
    """

    most_bytes = 2**23  # of one read: large against the 50 ms that a request takes, small against a shard

    def __init__(self, folder: str, name: str, state: FileState, remote: RemoteFiles) -> None:
        self._folder, self._name, self._state, self._remote = folder, name, state, remote
        self._url = f"{folder}/{name}"
        self._looked, self._replaced = time.monotonic(), False

    def read(self, memory: memoryview, ranges: Iterable[tuple[int, int, int]]) -> None:
        """memory[place : place + nbytes] become the bytes from `at` on, for each (place, at, nbytes)."""
        self._refuse_replaced()
        try:
            for place, at, nbytes in ranges:
                data = self._remote.read(self._url, at, at + nbytes)
                if len(data) > nbytes:
                    raise OSError("the server sends more than the range that it is asked for; copy the dataset instead")
                self._replaced |= len(data) < nbytes
                self._refuse_replaced()
                memory[place : place + nbytes] = data
        except FileNotFoundError:
            self._replaced = True
            raise changed(self._url) from None
        except OSError as error:
            raise self._unreadable(error) from error

    def check(self) -> None:
        """ShardError if the file has been replaced since the dataset was opened, as far as was looked for."""
        self._refuse_replaced()
        if time.monotonic() - self._looked >= _SECONDS_BETWEEN_LOOKS:
            self.look()

    def look(self) -> None:
        """ShardError if the file has been replaced since the dataset was opened."""
        before, self._looked = self._looked, time.monotonic()  # at once: one request of all threads is enough
        try:
            states = self._remote.states(self._folder, [self._name])
        except OSError as error:
            self._looked = before
            raise self._unreadable(error) from error
        self._replaced |= states.get(self._name) != self._state
        self._refuse_replaced()

    def _refuse_replaced(self) -> None:
        if self._replaced:  # for good: who reads ahead tries again
            raise changed(self._url)

    def advise(self, at: int, nbytes: int) -> None:
        """Nothing can be read beforehand but by reading it."""

    def _unreadable(self, error: OSError) -> ShardError:
        return ShardError(f"shard {self._url} cannot be read: {why(error)}")


def changed(file: str) -> ShardError:
    """What to say of a shard that is no longer what it was."""
    return ShardError(f"shard {file} has changed since the dataset was opened; open it again")
