"""`manifest.json`: what a dataset is, as frozen dataclasses; written last, parsed strictly.

`parse_manifest(format_manifest(m)) == m`. Whatever is missing, unknown, of the wrong type or at odds with the rest
stops in `parse_manifest`; code behind it trusts what it gets. The file is described in docs/format.md.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .document import Document
from .errors import DatasetNotFoundError, FormatVersionError, ManifestError, SplitNotFoundError
from .features import DTYPES, Feature
from .naming import EPISODES, MANIFEST, ShardName, is_split_name
from .record import EPISODE, MAX_WINDOW_BYTES, START, RecordLayout, record_layout

FORMAT = "episode-windows"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Shard:
    """One shard: its file's name, records, windows, size in bytes and SHA-256 in hexadecimal."""

    file: str
    records: int
    windows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """One split: the fraction asked for (a decimal number), its episodes, and its shards."""

    name: str
    fraction: str
    episodes: int
    shards: tuple[Shard, ...]

    @cached_property
    def windows(self) -> int:
        """Windows in all shards."""
        return sum(shard.windows for shard in self.shards)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True)
class Source:
    """What the dataset was made from: the episodes used, their steps, dtype and the shape of one step.

    `short` episodes have no window, `skipped` ones could not be used (episodes.csv says why); `uncovered` steps of the
    other episodes lie in no window.
    """

    episodes: int
    steps: int
    dtype: str
    step_shape: tuple[int, ...]
    short: int
    skipped: int
    uncovered: int


@dataclass(frozen=True)
class Manifest:
    """A dataset: `length` and `shift` in steps, `features` of one window, `splits` in the order asked for.

    `episodes_sha256` is the digest of episodes.csv, `fingerprint` that of everything the shards' bytes depend on.
    """

    name: str
    length: int
    shift: int
    seed: int
    features: tuple[Feature, ...]
    source: Source
    splits: tuple[Split, ...]
    episodes_sha256: str
    fingerprint: str

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of each record."""
        return record_layout(self.features)

    @property
    def windows(self) -> int:
        """Windows in all splits."""
        return sum(split.windows for split in self.splits)

    @property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(split.bytes for split in self.splits)

    def split(self, name: str) -> Split:
        """The split of this name; SplitNotFoundError, which names those there are, when there is none."""
        for split in self.splits:
            if split.name == name:
                return split
        names = ", ".join(split.name for split in self.splits)
        raise SplitNotFoundError(f"dataset {self.name!r} has no split {name!r}; its splits are: {names}")


def load_manifest(path: str | Path) -> Manifest:
    """Read the manifest of the dataset in the folder `path`.

    Errors: DatasetNotFoundError where there is no manifest, FormatVersionError for a newer format, ManifestError for a
    damaged one.
    """
    if "://" in str(path):
        raise DatasetNotFoundError(f"{path} is a URL, and datasets are read from local folders: copy it to one first")
    file = Path(path) / MANIFEST
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(_not_found(Path(path))) from None
    except OSError as error:
        raise ManifestError(f"{file} cannot be read: {error.strerror}") from error
    return parse_manifest(text, str(file))


def _not_found(folder: Path) -> str:
    if not folder.exists():
        return f"no dataset at {str(folder)!r}: there is no such folder"
    if not folder.is_dir():
        return f"no dataset at {str(folder)!r}: give the folder that holds {MANIFEST}, not a file"
    return (
        f"no dataset at {str(folder)!r}: it holds no {MANIFEST}, which a build writes last;"
        " build it, or give the folder that `python -m pipeline build --output` named"
    )


def format_manifest(manifest: Manifest) -> bytes:
    """The bytes of `manifest.json`: the same manifest always gives the same bytes."""
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "name": manifest.name,
        "window": {"length": manifest.length, "shift": manifest.shift},
        "seed": manifest.seed,
        "record_bytes": manifest.layout.record_bytes,
        "features": _feature_documents(manifest.layout),
        "source": vars(manifest.source) | {"step_shape": list(manifest.source.step_shape)},
        "splits": [
            {
                "name": split.name,
                "fraction": split.fraction,
                "episodes": split.episodes,
                "records": sum(shard.records for shard in split.shards),
                "windows": split.windows,
                "bytes": split.bytes,
                "shards": [
                    {key: getattr(shard, key) for key in ("file", "records", "windows", "bytes", "sha256")}
                    for shard in split.shards
                ],
            }
            for split in manifest.splits
        ],
        "episodes_file": {"file": EPISODES, "sha256": manifest.episodes_sha256},
        "fingerprint": manifest.fingerprint,
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def _feature_documents(layout: RecordLayout) -> list[dict[str, Any]]:
    return [
        {
            "name": field.feature.name,
            "dtype": field.feature.dtype,
            "shape": list(field.feature.shape),
            "encoding": field.encoding,
            "offset": field.offset,
            "bytes": field.nbytes,
        }
        for field in layout.fields
    ]


def parse_manifest(text: bytes, file: str = MANIFEST) -> Manifest:
    """The inverse of `format_manifest`; `file` is only for error messages.

    Errors: FormatVersionError for a newer format, ManifestError for anything missing, unknown or contradictory.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{file} is damaged: not JSON ({error}); copy or build the dataset again") from None
    top = Document(document, file, "")
    top.expect("format", FORMAT)
    version = top.integer("format_version")
    if version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{file} has format version {version}; this version of episode-windows reads up to {FORMAT_VERSION}:"
            " install a newer one"
        )
    top.expect_value("format_version", version, FORMAT_VERSION)
    window = top.object("window")
    length, shift = window.integer("length", least=1), window.integer("shift", least=1)
    window.end()
    name = top.name("name")
    features, layout = _parse_features(top)
    manifest = Manifest(
        name=name,
        length=length,
        shift=shift,
        seed=top.integer("seed"),
        features=features,
        source=_parse_source(top.object("source")),
        splits=tuple(_parse_split(split, name, layout.record_bytes) for split in top.objects("splits")),
        episodes_sha256=_parse_episodes_file(top.object("episodes_file")),
        fingerprint=top.digest("fingerprint"),
    )
    top.end()
    names = [split.name for split in manifest.splits]
    if not names or len(set(names)) < len(names):
        raise top.wrong("splits", "must be named apart, and one at least")
    if sum(split.episodes for split in manifest.splits) != manifest.source.episodes:
        raise top.wrong("source.episodes", "is not the sum of the splits' episodes")
    if any((f.dtype, f.shape[1:]) != (manifest.source.dtype, manifest.source.step_shape) for f in features):
        raise top.wrong("features", "differ from source.dtype and source.step_shape")
    if any(feature.shape[:1] != (length,) for feature in features):
        raise top.wrong("features", f"must begin with the window's length, {length}, in their shapes")
    return manifest


def _parse_features(top: Document) -> tuple[tuple[Feature, ...], RecordLayout]:
    """The window's own features; what is said of their place must be what the layout gives."""
    documents = top.objects("features")
    features = []
    for item in documents:
        feature = Feature(item.name("name"), item.text("dtype"), item.integers("shape"))
        if item.text("encoding") == "varint":
            continue
        if feature.dtype not in DTYPES:
            raise item.wrong("dtype", f"is none of {', '.join(DTYPES)}")
        if not 0 < feature.nbytes <= MAX_WINDOW_BYTES:
            raise item.wrong("shape", f"makes a window of {feature.nbytes} bytes; 1 to {MAX_WINDOW_BYTES} are allowed")
        features.append(feature)
    if not features:
        raise top.wrong("features", "holds no data")
    names = [feature.name for feature in (*features, EPISODE, START)]
    if len(set(names)) < len(names):
        raise top.wrong("features", "must be named apart")
    layout = record_layout(features)
    if json.dumps([item.document for item in documents], sort_keys=True) != json.dumps(
        _feature_documents(layout), sort_keys=True
    ):
        raise top.wrong("features", "does not lie where this format puts it")
    top.expect("record_bytes", layout.record_bytes)
    return tuple(features), layout


def _parse_source(item: Document) -> Source:
    counts = {key: item.integer(key) for key in ("episodes", "steps", "short", "skipped", "uncovered")}
    source = Source(dtype=item.text("dtype"), step_shape=item.integers("step_shape"), **counts)
    item.end()
    return source


def _parse_split(item: Document, dataset: str, record_bytes: int) -> Split:
    name = item.name("name")
    if not is_split_name(name):
        raise item.wrong("name", f"is {name!r}, which cannot name a split")
    documents = item.objects("shards")
    if not documents:
        raise item.wrong("shards", "is empty")
    shards = []
    for index, document in enumerate(documents):
        document.expect("file", str(ShardName(dataset, name, index, len(documents))))
        records = document.integer("records", least=1)
        document.expect("windows", records)
        document.expect("bytes", records * record_bytes)
        shards.append(Shard(document.text("file"), records, records, records * record_bytes, document.digest("sha256")))
        document.end()
    fraction = item.text("fraction")
    if not re.fullmatch(r"[0-9]+|[0-9]*\.[0-9]+", fraction):
        raise item.wrong("fraction", f"is {fraction!r:.200}, not a decimal number")
    split = Split(name, fraction, item.integer("episodes"), tuple(shards))
    item.expect("records", split.windows)
    item.expect("windows", split.windows)
    item.expect("bytes", split.bytes)
    item.end()
    return split


def _parse_episodes_file(item: Document) -> str:
    item.expect("file", EPISODES)
    digest = item.digest("sha256")
    item.end()
    return digest
