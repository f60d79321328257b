"""`manifest.json`: the manifest as JSON; written last, parsed strictly.

`parse_manifest(format_manifest(m)) == m`. Whatever is missing, unknown, of the wrong type or at odds with the rest
stops in `parse_manifest`; code behind it trusts what it gets. The file is described in docs/format.md.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast, get_args

from .document import Document, parse_document
from .errors import DatasetNotFoundError, FormatVersionError, ManifestError, OptionError
from .features import DTYPES, MAX_AXES, Feature
from .manifest import MAX_NONFINITE, Manifest, Nonfinite, Shard, Source, Split, SplitBy, Splitting
from .naming import EPISODES, MANIFEST, RESERVED, STAGING, ShardName, is_feature_name, is_split_name
from .record import MAX_RECORD_ARRAY, MAX_RECORD_BYTES, RecordLayout, record_layout
from .remote import Place, RemoteFiles, file_in, is_url, place_of, read_small, why
from .statistics import Statistics, parse_statistics, statistics_document
from .windows import MAX_STEPS_APART, TAILS, Tail, WindowSpec

FORMAT = "episode-windows"
FORMAT_VERSION = 1
NO_DIGEST = "0" * 64  # what a planned manifest has in place of digests that are not known yet
#: Of a manifest that is written or read: a million shards.
MAX_MANIFEST_BYTES = 2**28
_BUILT_LAST = ", which a build writes last; build it, or give the folder that `python -m pipeline build --output` named"


def load_manifest(path: Place, remote: RemoteFiles | None = None) -> Manifest:
    """Read the manifest of the dataset in the folder `path`, which may be a URL; by fsspec unless `remote` is given.

    Errors: DatasetNotFoundError where there is no manifest, FormatVersionError for a newer format, ManifestError for a
    damaged one.
    """
    file = file_in(place_of(path), MANIFEST)
    try:
        text = read_small(file, MAX_MANIFEST_BYTES, remote)
    except OptionError:  # of a kind of URL that nothing here opens
        raise
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError for a name with a zero byte
        if is_url(path):
            raise DatasetNotFoundError(f"no dataset at {str(path)!r}: there is no {file}{_BUILT_LAST}") from None
        raise DatasetNotFoundError(_not_found(Path(path))) from None
    except OSError as error:
        raise ManifestError(f"{file} cannot be read: {why(error)}") from error
    return parse_manifest(text, str(file))


def _not_found(folder: Path) -> str:
    if not folder.exists():
        return f"no dataset at {str(folder)!r}: there is no such folder"
    if not folder.is_dir():
        return f"no dataset at {str(folder)!r}: give the folder that holds {MANIFEST}, not a file"
    if (folder / STAGING).is_dir():
        return (
            f"no dataset at {str(folder)!r}: a build of it was interrupted, or is still running;"
            " run the same command again, and it goes on with what is finished"
        )
    return f"no dataset at {str(folder)!r}: it holds no {MANIFEST}{_BUILT_LAST}"


def format_manifest(manifest: Manifest) -> bytes:
    """The bytes of `manifest.json`: the same manifest always gives the same bytes.

    Errors: OptionError where they would be more than are read.
    """
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "name": manifest.name,
        "window": window_document(manifest.window),
        "seed": manifest.seed,
        "record_bytes": manifest.layout.record_bytes,
        "features": feature_documents(manifest.layout),
        "source": vars(manifest.source),
        "splitting": vars(manifest.splitting),
        "splits": [
            {
                "name": split.name,
                "fraction": split.fraction,
                "episodes": split.episodes,
                "records": split.records,
                "windows": split.windows,
                "bytes": split.bytes,
                "shards": [
                    {key: getattr(shard, key) for key in ("file", "records", "windows", "bytes", "sha256")}
                    for shard in split.shards
                ],
            }
            for split in manifest.splits
        ],
        "statistics": {
            "split": manifest.training_split,
            "features": [statistics_document(statistics) for statistics in manifest.statistics],
        },
        "nonfinite": list(map(vars, manifest.nonfinite)),
        "episodes_file": {"file": EPISODES, "sha256": manifest.episodes_sha256},
        "fingerprint": manifest.fingerprint,
    }
    text = json.dumps(document, indent=1).encode() + b"\n"
    if len(text) > MAX_MANIFEST_BYTES:
        raise OptionError(
            f"the manifest would have {len(text)} bytes, of which {MAX_MANIFEST_BYTES} at most are read: ask for fewer"
            " shards, or for features of fewer values a step"
        )
    return text


def fingerprint_of(manifest: Manifest, labels: Iterable[Sequence[float]] = ()) -> str:
    """The SHA-256 of all that the shards' bytes depend on but the values in the episodes' files.

    That is the manifest, but for what is known only once shards are written, and the columns of `labels`.
    """
    splits = tuple(
        replace(split, shards=tuple(replace(shard, sha256=NO_DIGEST) for shard in split.shards))
        for split in manifest.splits
    )
    planned = replace(manifest, splits=splits, statistics=(), nonfinite=(), fingerprint=NO_DIGEST)
    fingerprint = sha256(b"%d" % FORMAT_VERSION + format_manifest(planned))
    for values in labels:
        fingerprint.update(repr(tuple(values)).encode())
    return fingerprint.hexdigest()


def window_document(spec: WindowSpec) -> dict[str, Any]:
    """How windows are cut, as JSON types."""
    return {
        "length": spec.length,
        "shift": spec.shift,
        "stride": spec.stride,
        "tail": spec.tail,
        "windows_per_record": spec.per_record,
    }


def feature_documents(layout: RecordLayout) -> list[dict[str, Any]]:
    """What lies where in each record, as JSON types; shapes are those that are stored."""
    return [
        {
            "name": field.feature.name,
            "dtype": field.feature.dtype,
            "shape": list(field.feature.shape),
            "encoding": field.encoding,
            "offset": field.offset,
            "bytes": field.nbytes,
            "classes": list(field.feature.classes),
        }
        for field in layout.fields
    ]


def parse_manifest(text: bytes, file: str = MANIFEST) -> Manifest:
    """The inverse of `format_manifest`; `file` is only for error messages.

    Errors: FormatVersionError for a newer format, ManifestError for anything missing, unknown or contradictory.
    """
    try:
        return _parse_manifest(parse_document(text, file), file)
    except RecursionError:  # JSON is read almost as deep as Python calls; whatever compares or shows it goes deeper
        raise ManifestError(f"{file} is damaged: it is nested too deep; copy or build the dataset again") from None


def _parse_manifest(top: Document, file: str) -> Manifest:
    top.expect("format", FORMAT)
    version = top.integer("format_version")
    if version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{file} has format version {version}; this version of episode-windows reads up to {FORMAT_VERSION}:"
            " install a newer one"
        )
    top.expect_value("format_version", version, FORMAT_VERSION)
    spec = _parse_window(top.object("window"))
    name = top.name("name")
    features, layout = _parse_features(top, spec)
    splitting = _parse_splitting(top.object("splitting"))
    splits = tuple(
        _parse_split(split, name, spec, layout.record_bytes, splitting.by) for split in top.objects("splits")
    )
    names = [split.name for split in splits]
    if not names or len(set(names)) < len(names):
        raise top.wrong("splits", "must be named apart, and one at least")
    if sum(split.bytes for split in splits) >= 2**63:  # and so of windows, of which each has a byte or more
        raise top.wrong("splits", "have more bytes in all than 64 bits count")
    manifest = Manifest(
        name=name,
        window=spec,
        seed=top.integer("seed"),
        features=features,
        source=_parse_source(top.object("source")),
        splitting=splitting,
        splits=splits,
        statistics=(),
        nonfinite=_parse_nonfinite(top, features),
        episodes_sha256=_parse_episodes_file(top.object("episodes_file")),
        fingerprint=top.digest("fingerprint"),
    )
    manifest = replace(manifest, statistics=_parse_statistics(top.object("statistics"), manifest))
    top.end()
    episodes, total = manifest.source.episodes, sum(split.episodes for split in splits)
    if total < episodes or (total > episodes and manifest.splitting.by != "time"):
        raise top.wrong("source.episodes", "is not the sum of the splits' episodes")
    return manifest


def _parse_window(item: Document) -> WindowSpec:
    spec = WindowSpec(
        length=item.integer("length", least=1),
        shift=item.integer("shift", least=1),
        stride=item.integer("stride", least=1),
        tail=cast(Tail, item.choice("tail", TAILS)),
        per_record=item.integer("windows_per_record", least=1),
    )
    item.end()
    for key, value in window_document(spec).items():
        if isinstance(value, int) and value >= MAX_STEPS_APART:
            raise item.wrong(key, f"is {value}; less than {MAX_STEPS_APART} is allowed")
    return spec


def _parse_features(top: Document, spec: WindowSpec) -> tuple[tuple[Feature, ...], RecordLayout]:
    """The window's own features; what is said of their place must be what the layout gives."""
    documents = top.objects("features")
    features: list[Feature] = []
    total = 0
    for item in documents:
        stored = Feature(item.text("name"), item.text("dtype"), item.integers("shape"), item.texts("classes"))
        if stored.name in RESERVED:
            continue  # not the dataset's own; compared below
        if not is_feature_name(stored.name):
            raise item.wrong("name", f"is {stored.name!r:.200}, which cannot name a feature")
        if stored.dtype not in DTYPES:
            raise item.wrong("dtype", f"is none of {', '.join(DTYPES)}")
        if len(stored.shape) > MAX_AXES:
            raise item.wrong("shape", f"has {len(stored.shape)} axes; {MAX_AXES} at most are allowed")
        if not 0 < stored.nbytes <= MAX_RECORD_ARRAY:
            raise item.wrong("shape", f"makes an array of {stored.nbytes} bytes; 1 to {MAX_RECORD_ARRAY} are allowed")
        if stored.shape and stored.shape[0] != spec.record_steps:
            raise item.wrong("shape", f"must begin with the steps of a record, {spec.record_steps}")
        if stored.classes and (stored.dtype, stored.shape) != ("int64", ()):
            raise item.wrong("classes", "belong to an int64 value of an episode only")
        if len(set(stored.classes)) < len(stored.classes):
            raise item.wrong("classes", "must be named apart")
        total += stored.nbytes
        features.append(replace(stored, shape=(spec.length, *stored.shape[1:])) if stored.shape else stored)
    if not any(feature.shape for feature in features):
        raise top.wrong("features", "holds nothing along time")
    if len({feature.name for feature in features}) < len(features):
        raise top.wrong("features", "must be named apart")
    if total > MAX_RECORD_BYTES:
        raise top.wrong("features", f"make records of more than {MAX_RECORD_BYTES} bytes")
    layout = record_layout(features, spec)
    if json.dumps([item.document for item in documents], sort_keys=True) != json.dumps(
        feature_documents(layout), sort_keys=True
    ):
        raise top.wrong("features", "does not lie where this format puts it")
    top.expect("record_bytes", layout.record_bytes)
    return tuple(features), layout


def _parse_source(item: Document) -> Source:
    names = [field.name for field in fields(Source)]
    source = Source(**{name: item.integer(name) for name in names})
    item.end()
    return source


def _parse_splitting(item: Document) -> Splitting:
    by = cast(SplitBy, item.choice("by", get_args(SplitBy)))
    splitting = Splitting(by, item.optional_text("group_by"), item.integer("purge"))
    item.end()
    if by == "time" and splitting.group_by is not None:
        raise item.wrong("group_by", "cannot be, where episodes are split by time")
    if by != "time" and splitting.purge:
        raise item.wrong("purge", "cannot be, where episodes are not split by time")
    return splitting


def _parse_statistics(item: Document, manifest: Manifest) -> tuple[Statistics, ...]:
    """None in the draft of a build; of every feature that has them in a dataset."""
    item.expect("split", manifest.training_split)
    statistics = tuple(map(parse_statistics, item.objects("features")))
    item.end()
    if statistics and tuple(each.feature for each in statistics) != manifest.measured_features:
        raise item.wrong("features", f"must be those of {', '.join(manifest.measured_features):.500}")
    shapes = {feature.name: feature.shape for feature in manifest.features}
    for each in statistics:
        components = shapes[each.feature][-1] if len(shapes[each.feature]) > 1 else 1
        if len(each.components) != components:
            raise item.wrong("features", f"must have {components} components for {each.feature}")
    return statistics


def _parse_nonfinite(top: Document, features: Sequence[Feature]) -> tuple[Nonfinite, ...]:
    documents, names = top.objects("nonfinite"), [feature.name for feature in features]
    found = []
    for item in documents[: MAX_NONFINITE + 1]:
        feature = item.choice("feature", names)
        found.append(Nonfinite(item.integer("episode"), feature, item.integer("values", least=1), item.integer("step")))
        item.end()
    places = [(place.episode, place.feature) for place in found]
    if len(places) > MAX_NONFINITE or places != sorted(set(places)):
        raise top.wrong("nonfinite", f"must have {MAX_NONFINITE} entries at most, in order of episode and feature")
    return tuple(found)


def _parse_split(item: Document, dataset: str, spec: WindowSpec, record_bytes: int, by: SplitBy) -> Split:
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
        windows = document.integer("windows", least=records)
        if windows > records * spec.per_record:
            raise document.wrong("windows", f"are too many for {records} records of {spec.per_record}")
        document.expect("bytes", records * record_bytes)
        shards.append(Shard(document.text("file"), records, windows, records * record_bytes, document.digest("sha256")))
        document.end()
    fraction = item.optional_text("fraction")
    if fraction is not None and not re.fullmatch(r"[0-9]+|[0-9]*\.[0-9]+", fraction):
        raise item.wrong("fraction", f"is {fraction!r:.200}, not a decimal number")
    if (fraction is None) != (by == "given"):
        raise item.wrong("fraction", "must be null where episodes' splits were given, and only there")
    split = Split(name, fraction, item.integer("episodes"), tuple(shards))
    item.expect("records", split.records)
    item.expect("windows", split.windows)
    item.expect("bytes", split.bytes)
    item.end()
    return split


def _parse_episodes_file(item: Document) -> str:
    item.expect("file", EPISODES)
    digest = item.digest("sha256")
    item.end()
    return digest
