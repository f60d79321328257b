"""Datasets at gs:// by TensorFlow's own file system: to stream shards from there takes no package besides."""

import os
import sys
import warnings
from collections.abc import Collection
from importlib.util import find_spec

from shards.files import FileState
from shards.remote import FSSPEC, Place, RemoteFiles, side_by_side

_BLOCK = "GCS_READ_CACHE_BLOCK_SIZE_MB"
_BLOCK_MEGABYTES, _DEFAULT_MEGABYTES, _MOST_MEGABYTES = "5", "64", 16  # a piece of a shard has 4 MiB
# TensorFlow asks for so much at once, wherever it is to read, and can be told of another size until it is loaded.
if "tensorflow" not in sys.modules:
    os.environ.setdefault(_BLOCK, _BLOCK_MEGABYTES)
_asked = os.environ.get(_BLOCK, _DEFAULT_MEGABYTES)

import tensorflow as tf  # noqa: E402 after what it looks for when it is loaded


class TensorFlowFiles:
    """`RemoteFiles` by `tf.io.gfile`."""

    def read(self, url: str, begin: int, end: int) -> bytes:
        """As of `RemoteFiles`."""
        try:
            with tf.io.gfile.GFile(url, "rb") as opened:
                opened.seek(begin)
                data: bytes = opened.read(end - begin)
        except tf.errors.NotFoundError:
            raise FileNotFoundError(url) from None
        except tf.errors.OutOfRangeError:
            return b""
        except tf.errors.OpError as error:
            raise _refused(url, error) from None
        return data

    def states(self, folder: str, names: Collection[str]) -> dict[str, FileState]:
        """As of `RemoteFiles`; a request each."""
        asked = zip(names, side_by_side(lambda name: _state(f"{folder}/{name}"), names), strict=True)
        return {name: state for name, state in asked if state is not None}


def _state(url: str) -> FileState | None:
    try:
        found = tf.io.gfile.stat(url)
    except tf.errors.NotFoundError:
        return None
    except tf.errors.OpError as error:
        raise _refused(url, error) from None
    return FileState(found.length, found.mtime_nsec)


def _refused(url: str, error: tf.errors.OpError) -> OSError:
    remedy = "check the network, the bucket, and the credentials: gcloud auth application-default login"
    return OSError(f"{url}: {error.message.rstrip('.')}; {remedy}")


def remote_files(path: Place) -> RemoteFiles:
    """How `load` reads at this URL: gs:// by TensorFlow, if it takes blocks of a few megabytes, all else by fsspec."""
    if not str(path).startswith("gs://"):
        return FSSPEC
    if _asked.isdigit() and 0 < int(_asked) <= _MOST_MEGABYTES:
        return TensorFlowFiles()
    if find_spec("gcsfs") is not None:
        return FSSPEC
    warnings.warn(
        f"TensorFlow was loaded before the package reader, and reads {_asked} MB of gs:// at once where 5 are enough:"
        f" import reader first, set {_BLOCK}={_BLOCK_MEGABYTES} in the environment, or pip install gcsfs",
        stacklevel=3,
    )
    return TensorFlowFiles()
