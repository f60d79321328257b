"""What one window holds: named arrays, each of one dtype and shape."""

from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np

#: Every dtype a dataset can hold, by the name it has in NumPy, TensorFlow and the manifest; all little-endian.
DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}

#: Of one window: NumPy 1 has arrays of 32 axes, and gathering a batch of windows needs one or two more than a window.
MAX_AXES = 30


def kind_of(dtype: str) -> str:
    """NumPy's letter for the kind of a dtype, "f" for bfloat16 too, which NumPy itself does not know.

    >>> kind_of("bool"), kind_of("uint8"), kind_of("bfloat16")
    ('b', 'u', 'f')
    """
    return "f" if dtype == "bfloat16" else DTYPES[dtype].kind


@dataclass(frozen=True)
class Feature:
    """One array of a window: `shape` is (length, ...), without the batch; () for a value of the whole episode.

    `classes` are the names of the classes that an int64 value of an episode numbers, if it does.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    classes: tuple[str, ...] = ()

    @property
    def numpy_dtype(self) -> np.dtype:
        """The little-endian NumPy dtype."""
        return DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of one window of this feature."""
        return prod(self.shape) * self.numpy_dtype.itemsize
