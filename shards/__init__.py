"""What lies between `pipeline` and `reader`: a dataset of windows on disk, and random access to it with NumPy.

d = open_dataset("out")             # d.splits, d.manifest
w = d["train"]                      # len(w), w[i], w[index_array], w.locate(i)
"""

from .dataset import Dataset, Windows, open_dataset
from .errors import (
    BuildError,
    DatasetError,
    DatasetNotFoundError,
    EpisodeError,
    EpisodeWindowsError,
    FormatVersionError,
    ManifestError,
    OptionError,
    OutputError,
    ShardError,
    SplitNotFoundError,
)
from .features import Feature
from .manifest import Manifest
from .manifest_file import load_manifest

__all__ = [
    "BuildError",
    "Dataset",
    "DatasetError",
    "DatasetNotFoundError",
    "EpisodeError",
    "EpisodeWindowsError",
    "Feature",
    "FormatVersionError",
    "Manifest",
    "ManifestError",
    "OptionError",
    "OutputError",
    "ShardError",
    "SplitNotFoundError",
    "Windows",
    "load_manifest",
    "open_dataset",
]
