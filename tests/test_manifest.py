import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards import (
    DatasetNotFoundError,
    FormatVersionError,
    ManifestError,
    SplitNotFoundError,
    load_manifest,
)
from shards.features import DTYPES, Feature
from shards.manifest import Manifest, Shard, Source, Split, format_manifest, parse_manifest
from shards.naming import ShardName
from shards.record import record_layout

RECORD_BYTES = 108
MANIFEST = Manifest(
    name="demo",
    length=4,
    shift=2,
    seed=7,
    features=(Feature("window", "int16", (4, 3)),),
    source=Source(episodes=3, steps=50, dtype="int16", step_shape=(3,), short=1, skipped=2, uncovered=5),
    splits=(
        Split(
            "train",
            "0.8",
            2,
            (
                Shard("demo-train.tfrecord-00000-of-00002", 8, 8, 8 * RECORD_BYTES, "a" * 64),
                Shard("demo-train.tfrecord-00001-of-00002", 7, 7, 7 * RECORD_BYTES, "b" * 64),
            ),
        ),
        Split("test", "0.2", 1, (Shard("demo-test.tfrecord-00000-of-00001", 3, 3, 3 * RECORD_BYTES, "c" * 64),)),
    ),
    episodes_sha256="d" * 64,
    fingerprint="e" * 64,
)
DOCUMENT: dict[str, Any] = {
    "format": "episode-windows",
    "format_version": 1,
    "name": "demo",
    "window": {"length": 4, "shift": 2},
    "seed": 7,
    "record_bytes": RECORD_BYTES,
    "features": [
        {"name": "window", "dtype": "int16", "shape": [4, 3], "encoding": "bytes", "offset": 36, "bytes": 24},
        {"name": "episode", "dtype": "int64", "shape": [], "encoding": "varint", "offset": 77, "bytes": 5},
        {"name": "start", "dtype": "int64", "shape": [], "encoding": "varint", "offset": 98, "bytes": 6},
    ],
    "source": {
        "episodes": 3,
        "steps": 50,
        "dtype": "int16",
        "step_shape": [3],
        "short": 1,
        "skipped": 2,
        "uncovered": 5,
    },
    "splits": [
        {
            "name": "train",
            "fraction": "0.8",
            "episodes": 2,
            "records": 15,
            "windows": 15,
            "bytes": 15 * RECORD_BYTES,
            "shards": [
                {
                    "file": "demo-train.tfrecord-00000-of-00002",
                    "records": 8,
                    "windows": 8,
                    "bytes": 8 * RECORD_BYTES,
                    "sha256": "a" * 64,
                },
                {
                    "file": "demo-train.tfrecord-00001-of-00002",
                    "records": 7,
                    "windows": 7,
                    "bytes": 7 * RECORD_BYTES,
                    "sha256": "b" * 64,
                },
            ],
        },
        {
            "name": "test",
            "fraction": "0.2",
            "episodes": 1,
            "records": 3,
            "windows": 3,
            "bytes": 3 * RECORD_BYTES,
            "shards": [
                {
                    "file": "demo-test.tfrecord-00000-of-00001",
                    "records": 3,
                    "windows": 3,
                    "bytes": 3 * RECORD_BYTES,
                    "sha256": "c" * 64,
                }
            ],
        },
    ],
    "episodes_file": {"file": "episodes.csv", "sha256": "d" * 64},
    "fingerprint": "e" * 64,
}

Place = tuple[str | int, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where every value of a JSON document lies, the whole of it first."""
    yield place
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*place, key))


def at(document: Any, place: Place) -> Any:
    for key in place:
        document = document[key]
    return document


def changed(place: Place, value: Any) -> bytes:
    """DOCUMENT as JSON, with one value changed."""
    document = deepcopy(DOCUMENT)
    at(document, place[:-1])[place[-1]] = value
    return json.dumps(document).encode()


def test_a_manifest_is_written_as_this_document() -> None:
    assert json.loads(format_manifest(MANIFEST)) == DOCUMENT
    assert format_manifest(MANIFEST) == json.dumps(DOCUMENT, indent=1).encode() + b"\n"


def test_a_manifest_is_read_from_this_document() -> None:
    assert parse_manifest(json.dumps(DOCUMENT).encode()) == MANIFEST


names = st.from_regex("[a-z][a-z0-9_]{0,20}", fullmatch=True)
counts = st.integers(0, 2**40)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    length = draw(st.integers(1, 50))
    shape = (length, *draw(st.lists(st.integers(1, 5), max_size=3)))
    feature = Feature(
        draw(names.filter(lambda name: name not in {"episode", "start"})), draw(st.sampled_from([*DTYPES])), shape
    )
    record_bytes = record_layout([feature]).record_bytes
    name = draw(names)
    split_names = draw(st.lists(names.filter(lambda text: text != "all"), min_size=1, max_size=3, unique=True))
    splits = []
    for split in split_names:
        records = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=4))
        shards = tuple(
            Shard(str(ShardName(name, split, i, len(records))), n, n, n * record_bytes, f"{draw(counts):064x}")
            for i, n in enumerate(records)
        )
        fraction = f"{draw(st.decimals('0.01', 1, places=2))}"
        splits.append(Split(split, fraction, draw(st.integers(1, 2**20)), shards))
    episodes = sum(split.episodes for split in splits)
    source = Source(episodes, draw(counts), feature.dtype, shape[1:], draw(counts), draw(counts), draw(counts))
    digests = (f"{draw(counts):064x}", f"{draw(counts):064x}")
    return Manifest(
        name,
        length,
        draw(st.integers(1, 99)),
        draw(st.integers(0, 2**63 - 1)),
        (feature,),
        source,
        tuple(splits),
        *digests,
    )


@settings(max_examples=50, deadline=None)
@given(manifests())
def test_every_manifest_comes_back(manifest: Manifest) -> None:
    text = format_manifest(manifest)

    assert parse_manifest(text) == manifest
    assert format_manifest(parse_manifest(text)) == text


def test_a_manifest_adds_up_its_shards() -> None:
    assert MANIFEST.windows == 18
    assert MANIFEST.bytes == 18 * RECORD_BYTES
    assert [(split.windows, split.bytes) for split in MANIFEST.splits] == [
        (15, 15 * RECORD_BYTES),
        (3, 3 * RECORD_BYTES),
    ]
    assert MANIFEST.layout.record_bytes == RECORD_BYTES


def test_a_split_is_found_by_its_name() -> None:
    assert MANIFEST.split("test").episodes == 1
    with pytest.raises(SplitNotFoundError, match=r"'demo' has no split 'tset'; its splits are: train, test"):
        MANIFEST.split("tset")


@pytest.mark.parametrize(
    "place",
    [place for place in places(DOCUMENT) if place and isinstance(place[-1], str)],
    ids=lambda p: ".".join(map(str, p)),
)
def test_a_missing_key_is_named(place: Place) -> None:
    document = deepcopy(DOCUMENT)
    del at(document, place[:-1])[place[-1]]

    with pytest.raises(ManifestError, match=rf"manifest\.json is damaged: .*({place[-1]}|features) .*copy or build"):
        parse_manifest(json.dumps(document).encode())


@pytest.mark.parametrize(
    "place",
    [place for place in places(DOCUMENT) if isinstance(at(DOCUMENT, place), dict)],
    ids=lambda p: ".".join(map(str, p)) or "top",
)
def test_an_unknown_key_is_refused(place: Place) -> None:
    document = deepcopy(DOCUMENT)
    at(document, place)["compression"] = "none"

    with pytest.raises(ManifestError, match=r"damaged: .*(compression is unknown|features does not lie)"):
        parse_manifest(json.dumps(document).encode())


@pytest.mark.parametrize("value", [None, True, -1, 1.0, "1", [], {}, 2**63], ids=repr)
@pytest.mark.parametrize("place", [place for place in places(DOCUMENT) if place], ids=lambda p: ".".join(map(str, p)))
def test_a_value_of_another_type_is_refused(place: Place, value: Any) -> None:
    before = at(DOCUMENT, place)
    if (type(value) is type(before) and value == before) or (place[-1] == "fraction" and value == "1"):
        value = [None]  # the value given would be none of another type
    if place == ("seed",) and value == 2**63:
        value = 2**64

    with pytest.raises((ManifestError, FormatVersionError), match=r"manifest\.json"):
        parse_manifest(changed(place, value))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("format",), "zarr", "format is 'zarr' where 'episode-windows' belongs"),
        (("format_version",), 0, "format_version is 0 where 1 belongs"),
        (("name",), "Demo", "name is 'Demo', which is no name"),
        (("name",), "../x", "no name"),
        (("name",), "other", r"splits\[0\].shards\[0\].file is 'demo-train"),
        (("window", "length"), 5, "features must begin with the window's length, 5"),
        (("window", "length"), 0, "window.length is 0, not a whole number of 1 or more"),
        (("window", "shift"), 0, "window.shift is 0, not a whole number of 1 or more"),
        (("record_bytes",), 112, "record_bytes is 112 where 108 belongs"),
        (("features",), [], "features holds no data"),
        (("features", 0, "dtype"), "float128", r"features\[0\].dtype is none of bool, int8"),
        (("features", 0, "shape"), [4, 2], "features does not lie where this format puts it"),
        (("features", 0, "shape"), [4, 0], "window of 0 bytes"),
        (("features", 0, "shape"), [2**62, 2**62], "shape makes a window of .* bytes"),
        (("features", 0, "offset"), 40, "does not lie"),
        (("features", 0, "offset"), 36.0, "features"),
        (("features", 0, "encoding"), "float_list", "does not lie"),
        (("features", 1, "offset"), 78, "does not lie"),
        (("features", 2, "name"), "begin", "does not lie"),
        (("features", 0, "name"), "episode", "features"),
        (("source", "dtype"), "float32", "source.dtype"),
        (("source", "step_shape"), [2], "source.step_shape"),
        (("source", "episodes"), 4, "episodes"),
        (("splits",), [], "splits must be named apart, and one at least"),
        (("splits", 1, "name"), "train", "damaged: splits"),
        (("splits", 0, "name"), "all", "'all', which cannot name a split"),
        (("splits", 0, "fraction"), "most", r"splits\[0\].fraction"),
        (("splits", 0, "windows"), 14, r"splits\[0\].windows is 14 where 15 belongs"),
        (("splits", 0, "records"), 14, r"splits\[0\].records is 14 where 15 belongs"),
        (("splits", 0, "bytes"), 14, r"splits\[0\].bytes is 14 where 1620 belongs"),
        (("splits", 0, "shards", 1, "bytes"), 1, r"splits\[0\].shards\[1\].bytes is 1 where 756 belongs"),
        (("splits", 0, "shards", 1, "records"), 8, r"splits\[0\].shards\[1\].windows is 7 where 8 belongs"),
        (("splits", 0, "shards", 0, "file"), "/etc/passwd", r"file is '/etc/passwd' where 'demo-train"),
        (("splits", 0, "shards", 0, "sha256"), "A" * 64, "not a SHA-256 digest"),
        (("splits", 0, "shards", 0, "sha256"), "a" * 63, "not a SHA-256 digest"),
        (("episodes_file", "file"), "../episodes.csv", "episodes_file.file is '../episodes.csv'"),
        (("episodes_file", "sha256"), "", "not a SHA-256 digest"),
        (("fingerprint",), "e" * 65, "fingerprint is .* not a SHA-256 digest"),
    ],
)
def test_a_contradiction_is_named(place: Place, value: Any, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        parse_manifest(changed(place, value))


def test_two_features_of_one_name_are_refused() -> None:
    twice = replace(MANIFEST, features=MANIFEST.features * 2)

    with pytest.raises(ManifestError, match="features"):
        parse_manifest(
            json.dumps(
                DOCUMENT
                | {
                    "record_bytes": twice.layout.record_bytes,
                    "features": json.loads(format_manifest(replace(twice, splits=())))["features"],
                    "splits": [],
                }
            ).encode()
        )


def test_a_newer_format_is_refused_before_anything_else_is_read() -> None:
    text = json.dumps({"format": "episode-windows", "format_version": 2, "shards": "elsewhere"}).encode()

    with pytest.raises(FormatVersionError, match=r"here\.json has format version 2; .* reads up to 1: install a newer"):
        parse_manifest(text, "here.json")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"[]", b"\xff\xfe\x00", b"[" * 200_000, b'{"format": NaN}', b'{"a": ' + b"1" * 9999 + b"}"],
    ids=["empty", "open", "null", "list", "no text", "deep", "nan", "long number"],
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ManifestError, match=r"manifest\.json is damaged"):
        parse_manifest(text)


def test_a_manifest_is_loaded_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(format_manifest(MANIFEST))

    assert load_manifest(tmp_path) == load_manifest(str(tmp_path)) == MANIFEST


def test_a_folder_without_a_manifest_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DatasetNotFoundError, match="there is no such folder"):
        load_manifest(tmp_path / "nowhere")
    with pytest.raises(DatasetNotFoundError, match=r"give the folder that holds manifest\.json, not a file"):
        load_manifest(tmp_path / "file")
    with pytest.raises(DatasetNotFoundError, match=r"it holds no manifest\.json, which a build writes last"):
        load_manifest(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_manifest(tmp_path)


def test_a_manifest_that_is_a_folder_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()

    with pytest.raises(ManifestError, match=r"manifest\.json cannot be read: Is a directory"):
        load_manifest(tmp_path)
