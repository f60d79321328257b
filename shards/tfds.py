"""TFDS metadata, so that `tfds.builder_from_directory(folder)` reads a dataset like one of its own."""

import json
from typing import Any

from .features import Feature
from .manifest import Manifest
from .record import EPISODE, START

_CLASSES = "tensorflow_datasets.core.features."


def dataset_info_json(manifest: Manifest) -> bytes:
    """The bytes of dataset_info.json."""
    document = {
        "name": manifest.name,
        "version": "1.0.0",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": split.name,
                "shardLengths": [str(shard.records) for shard in split.shards],
                "numBytes": str(split.bytes),
            }
            for split in manifest.splits
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def features_json(features: tuple[Feature, ...]) -> bytes:
    """The bytes of features.json."""
    document = {
        "pythonClassName": _CLASSES + "features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                feature.name: {"pythonClassName": _CLASSES + "tensor_feature.Tensor", "tensor": _tensor(feature)}
                for feature in (*features, EPISODE, START)
            }
        },
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def _tensor(feature: Feature) -> dict[str, Any]:
    dtype, shape = feature.dtype, feature.shape
    if dtype == "uint32":  # tf.io.decode_raw, with which TFDS decodes, has no uint32: show the four bytes of each value
        dtype, shape = "uint8", (*shape, 4)
    bytes_list = shape != () and dtype != "float32"
    return {
        "shape": {"dimensions": [str(size) for size in shape]},
        "dtype": dtype,
        "encoding": "bytes" if bytes_list else "none",
    }
