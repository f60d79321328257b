"""Files at URLs: gs:// by Beam's client, which is kept as long as a thread lives, all else by Beam's file systems.

Beam's own file system for gs:// makes a new client for every operation and reads 16 MiB at least: a header of a hundred
bytes would cost a second and that much traffic.
"""

import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Protocol

from shards.errors import OptionError
from shards.files import FileState

_BATCH = 100  # objects that one request moves or deletes
_BATCHES = 16  # requests of that kind under way


class UrlFiles(Protocol):
    """What `files` does at URLs. Errors: anything, which `files` makes an OSError of."""

    def open(self, path: str, ahead: int) -> BinaryIO:
        """Open for reading; each read of the store takes `ahead` bytes at least, where the store can be told."""

    def create(self, path: str) -> BinaryIO:
        """Open for writing; the file is there once it is closed."""

    def state(self, path: str) -> FileState | None:
        """The state of a file; None if there is none."""

    def below(self, folder: str) -> Iterator[tuple[str, FileState]]:
        """(path, state) of every file below a folder."""

    def move(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Rename files, replacing what is there."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files."""


def url_files(path: str) -> UrlFiles:
    """Those for this kind of URL. Errors: ImportError, ValueError for a kind that Beam does not know."""
    return _google() if path.startswith("gs://") else BeamFiles()


def set_flags(flags: Sequence[str]) -> None:
    """Let Beam's flags say how stores are reached, in a process that runs no pipeline. Errors: ImportError."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    FileSystems.set_options(PipelineOptions(list(flags)))


class BeamFiles:
    """Any file system that Beam knows."""

    def __init__(self) -> None:
        from apache_beam.io.filesystems import FileSystems

        self._files = FileSystems

    def open(self, path: str, ahead: int) -> BinaryIO:
        """As of `UrlFiles`; these cannot be told."""
        opened: BinaryIO = self._files.open(path, compression_type="uncompressed")
        return opened

    def create(self, path: str) -> BinaryIO:
        """As of `UrlFiles`."""
        opened: BinaryIO = self._files.create(path, compression_type="uncompressed")
        return opened

    def state(self, path: str) -> FileState | None:
        """As of `UrlFiles`."""
        if not self._files.exists(path):
            return None
        return _beam_state(self._files.get_filesystem(path).metadata(path))  # by `match` a name may be a pattern

    def below(self, folder: str) -> Iterator[tuple[str, FileState]]:
        """As of `UrlFiles`."""
        folder = folder.rstrip("/") + "/"
        plain = re.split(r"[*?\[]", folder)[0]  # what follows would be a pattern
        found = self._files.match([plain + "**"])[0].metadata_list
        return ((each.path, _beam_state(each)) for each in found if each.path.startswith(folder))

    def move(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """As of `UrlFiles`."""
        self._files.rename(list(sources), list(targets))

    def delete(self, paths: Sequence[str]) -> None:
        """As of `UrlFiles`."""
        self._files.delete(list(paths))


def _beam_state(found: Any) -> FileState:
    return FileState(found.size_in_bytes, int(found.last_updated_in_seconds * 1e9))


class GoogleFiles:
    """gs://, by a client that belongs to one thread. The state of an object has its generation, which is its alone."""

    def __init__(self) -> None:
        from apache_beam.io.filesystems import FileSystems

        try:
            from apache_beam.io.gcp.gcsio import GcsIO
        except ImportError:
            raise OptionError("gs:// needs Google's clients: pip install 'episode-windows[gcp]'") from None
        # What a pipeline or `set_flags` has set in this process; Beam's own file system is made with the same.
        self._io = GcsIO(pipeline_options=FileSystems._pipeline_options or {})

    def open(self, path: str, ahead: int) -> BinaryIO:
        """As of `UrlFiles`."""
        opened: BinaryIO = self._io.open(path, "r", read_buffer_size=ahead)
        return opened

    def create(self, path: str) -> BinaryIO:
        """As of `UrlFiles`."""
        opened: BinaryIO = self._io.open(path, "w")
        return opened

    def state(self, path: str) -> FileState | None:
        """As of `UrlFiles`."""
        bucket, _, name = path.removeprefix("gs://").partition("/")
        blob = self._io.client.bucket(bucket).get_blob(name) if name else None  # a bucket is no file
        return None if blob is None else FileState(blob.size, blob.generation)

    def below(self, folder: str) -> Iterator[tuple[str, FileState]]:
        """As of `UrlFiles`."""
        bucket, _, prefix = (folder.removeprefix("gs://").rstrip("/") + "/").partition("/")
        fields = "items(name,size,generation),nextPageToken"
        for blob in self._io.client.list_blobs(bucket, prefix=prefix, fields=fields):
            if not blob.name.endswith("/"):  # what some tools make for folders
                yield f"gs://{bucket}/{blob.name}", FileState(blob.size, blob.generation)

    def move(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """As of `UrlFiles`: copied, then deleted, a hundred a request."""

        def move(pairs: Sequence[tuple[str, str]]) -> None:
            files = _google()
            _raise_first((target, status) for _, target, status in files._io.copy_batch(list(pairs)))
            _raise_first(files._io.delete_batch([source for source, _ in pairs]))

        _batches(move, list(zip(sources, targets, strict=True)))

    def delete(self, paths: Sequence[str]) -> None:
        """As of `UrlFiles`: a hundred a request."""
        _batches(lambda some: _raise_first(_google()._io.delete_batch(list(some))), paths)


_own = threading.local()


def _google() -> GoogleFiles:
    """The one of this thread."""
    files: GoogleFiles | None = getattr(_own, "files", None)
    if files is None:
        files = _own.files = GoogleFiles()
    return files


def _batches(function: Any, items: Sequence[Any]) -> None:
    parts = [items[i : i + _BATCH] for i in range(0, len(items), _BATCH)]
    if len(parts) < 2:
        for part in parts:
            function(part)
        return
    with ThreadPoolExecutor(min(len(parts), _BATCHES)) as pool:
        for _ in pool.map(function, parts):
            pass


def _raise_first(statuses: Any) -> None:
    """OSError for the first (path, status) that failed."""
    for path, status in statuses:
        if status:
            raise OSError(f"{path}: the store answered with status {status}")
