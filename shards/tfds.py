"""TFDS metadata, so that `tfds.builder_from_directory(folder)` reads a dataset like one of its own."""

import json
from typing import Any

from .features import Feature
from .manifest import Manifest
from .naming import DATASET_INFO, FEATURES

_CLASSES = "tensorflow_datasets.core.features."


def tfds_files(manifest: Manifest) -> dict[str, bytes]:
    """{file name: bytes} of all that TFDS reads besides the shards; nothing in them depends on the episodes' values."""
    files = {DATASET_INFO: dataset_info_json(manifest), FEATURES: features_json(manifest)}
    return files | class_name_files(manifest)


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


def features_json(manifest: Manifest) -> bytes:
    """The bytes of features.json."""
    document = {
        "pythonClassName": _CLASSES + "features_dict.FeaturesDict",
        "featuresDict": {"features": {field.feature.name: _feature(field.feature) for field in manifest.layout.fields}},
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def class_name_files(manifest: Manifest) -> dict[str, bytes]:
    """{file name: bytes} of the files in which TFDS looks for the names of classes, one a line."""
    return {
        f"{feature.name}.labels.txt": "".join(
            (" ".join(name.split()) or "_") + "\n" for name in feature.classes
        ).encode()
        for feature in manifest.features
        if feature.classes
    }


def _feature(feature: Feature) -> dict[str, Any]:
    if feature.classes:
        label = {"numClasses": str(len(feature.classes))}
        return {"pythonClassName": _CLASSES + "class_label_feature.ClassLabel", "classLabel": label}
    return {"pythonClassName": _CLASSES + "tensor_feature.Tensor", "tensor": _tensor(feature)}


def _tensor(feature: Feature) -> dict[str, Any]:
    dtype, shape = feature.dtype, feature.shape
    plain = dtype == "float32" or (dtype, shape) == ("int64", ())
    if dtype == "uint32":  # tf.io.decode_raw, with which TFDS decodes, has no uint32: show the four bytes of each value
        dtype, shape = "uint8", (*shape, 4)
    return {
        "shape": {"dimensions": [str(size) for size in shape]},
        "dtype": dtype,
        "encoding": "none" if plain else "bytes",
    }
