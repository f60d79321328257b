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
from shards.manifest import MAX_NONFINITE, Manifest, Nonfinite, Shard, Source, Split, Splitting
from shards.manifest_file import format_manifest, parse_manifest
from shards.naming import RESERVED, ShardName
from shards.record import record_layout
from shards.statistics import Statistics, Summary
from shards.windows import TAILS, WindowSpec

RECORD_BYTES = 208
MANIFEST = Manifest(
    name="demo",
    window=WindowSpec(4, 2, 1, "pad", 2),
    seed=7,
    features=(
        Feature("window", "int16", (4, 3)),
        Feature("gain", "float32", ()),
        Feature("speaker", "int64", (), ("ann", "bob")),
    ),
    source=Source(episodes=3, steps=50, bytes=300, short=1, skipped=2, uncovered=5),
    splitting=Splitting("hash", "speaker", 0),
    splits=(
        Split(
            "train",
            "0.8",
            2,
            (
                Shard("demo-train.tfrecord-00000-of-00002", 8, 15, 8 * RECORD_BYTES, "a" * 64),
                Shard("demo-train.tfrecord-00001-of-00002", 7, 7, 7 * RECORD_BYTES, "b" * 64),
            ),
        ),
        Split("test", "0.2", 1, (Shard("demo-test.tfrecord-00000-of-00001", 3, 6, 3 * RECORD_BYTES, "c" * 64),)),
    ),
    statistics=(
        Statistics(
            "window",
            Summary(3, 0.5, 2.5, -3.0, 4.0, 0, 0),
            (
                Summary(1, 0.5, 0.0, 0.5, 0.5, 0, 0),
                Summary(2, 0.5, 3.5, -3.0, 4.0, 0, 0),
                Summary(0, 0.0, 0.0, 0.0, 0.0, 0, 0),
            ),
        ),
    ),
    nonfinite=(Nonfinite(2, "gain", 1, 30),),
    episodes_sha256="d" * 64,
    fingerprint="e" * 64,
)
DOCUMENT: dict[str, Any] = {
    "format": "episode-windows",
    "format_version": 1,
    "name": "demo",
    "window": {"length": 4, "shift": 2, "stride": 1, "tail": "pad", "windows_per_record": 2},
    "seed": 7,
    "record_bytes": RECORD_BYTES,
    "features": [
        {
            "name": name,
            "dtype": dtype,
            "shape": shape,
            "encoding": encoding,
            "offset": offset,
            "bytes": nbytes,
            "classes": classes,
        }
        for name, dtype, shape, encoding, offset, nbytes, classes in (
            ("window", "int16", [6, 3], "bytes", 36, 36, []),
            ("gain", "float32", [], "float_list", 88, 4, []),
            ("speaker", "int64", [], "varint", 109, 10, ["ann", "bob"]),
            ("episode", "int64", [], "varint", 136, 5, []),
            ("count", "int64", [], "varint", 156, 5, []),
            ("valid", "int64", [], "varint", 176, 5, []),
            ("start", "int64", [], "varint", 198, 6, []),
        )
    ],
    "source": {"episodes": 3, "steps": 50, "bytes": 300, "short": 1, "skipped": 2, "uncovered": 5},
    "splitting": {"by": "hash", "group_by": "speaker", "purge": 0},
    "splits": [
        {
            "name": "train",
            "fraction": "0.8",
            "episodes": 2,
            "records": 15,
            "windows": 22,
            "bytes": 15 * RECORD_BYTES,
            "shards": [
                {
                    "file": "demo-train.tfrecord-00000-of-00002",
                    "records": 8,
                    "windows": 15,
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
            "windows": 6,
            "bytes": 3 * RECORD_BYTES,
            "shards": [
                {
                    "file": "demo-test.tfrecord-00000-of-00001",
                    "records": 3,
                    "windows": 6,
                    "bytes": 3 * RECORD_BYTES,
                    "sha256": "c" * 64,
                }
            ],
        },
    ],
    "statistics": {
        "split": "train",
        "features": [
            {
                "feature": "window",
                "total": {"count": 3, "mean": 0.5, "std": 2.5, "min": -3.0, "max": 4.0, "nan": 0, "infinite": 0},
                "components": {
                    "count": [1, 2, 0],
                    "mean": [0.5, 0.5, 0.0],
                    "std": [0.0, 3.5, 0.0],
                    "min": [0.5, -3.0, 0.0],
                    "max": [0.5, 4.0, 0.0],
                    "nan": [0, 0, 0],
                    "infinite": [0, 0, 0],
                },
            }
        ],
    },
    "nonfinite": [{"episode": 2, "feature": "gain", "values": 1, "step": 30}],
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
feature_names = st.from_regex("[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True).filter(lambda name: name not in RESERVED)
counts = st.integers(0, 2**40)
digests = counts.map(lambda number: f"{number:064x}")
specs = st.builds(
    WindowSpec, st.integers(1, 50), st.integers(1, 99), st.integers(1, 9), st.sampled_from(TAILS), st.integers(1, 8)
)
splittings = st.one_of(
    st.builds(Splitting, st.sampled_from(["episode", "hash", "given"]), st.one_of(st.none(), st.text())),
    st.builds(Splitting, st.just("time"), purge=counts),
)


@st.composite
def features_of(draw: st.DrawFn, length: int) -> tuple[Feature, ...]:
    steps = st.lists(st.integers(1, 5), max_size=3).map(lambda shape: (length, *shape))
    classes = st.one_of(st.just(()), st.lists(st.text(max_size=9), min_size=1, max_size=4, unique=True).map(tuple))
    dtypes = st.sampled_from([*DTYPES])
    kinds = st.one_of(
        st.builds(Feature, feature_names, dtypes, st.one_of(steps, st.just(()))),
        st.builds(Feature, feature_names, st.just("int64"), st.just(()), classes),
    )
    along_time = draw(st.builds(Feature, feature_names, dtypes, steps))
    others = draw(st.lists(kinds, max_size=3))
    features = {feature.name: feature for feature in (*others, along_time)}
    return tuple(draw(st.permutations([*features.values()])))


@st.composite
def statistics_of(draw: st.DrawFn, feature: Feature) -> Statistics:
    """Statistics that are possible: each component is that of some numbers."""
    components = []
    for _ in range(feature.shape[-1] if len(feature.shape) > 1 else 1):
        numbers = draw(st.lists(st.integers(-99, 99), max_size=3))
        mean = sum(numbers) / max(1, len(numbers))
        low, high = float(min(numbers, default=0)), float(max(numbers, default=0))
        std = draw(st.floats(0, 99)) if numbers else 0.0
        components.append(Summary(len(numbers), mean, std, low, high, draw(st.integers(0, 9)), draw(st.integers(0, 9))))
    if len(components) == 1:
        return Statistics(feature.name, components[0], tuple(components))
    filled = [component for component in components if component.count]
    low = min((component.min for component in filled), default=0.0)
    total = Summary(
        count=sum(component.count for component in components),
        mean=low,
        std=draw(st.floats(0, 99)) if filled else 0.0,
        min=low,
        max=max((component.max for component in filled), default=0.0),
        nan=sum(component.nan for component in components),
        infinite=sum(component.infinite for component in components),
    )
    return Statistics(feature.name, total, tuple(components))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    spec = draw(specs)
    features = draw(features_of(spec.length))
    record_bytes = record_layout(features, spec).record_bytes
    name = draw(names)
    split_names = draw(st.lists(names.filter(lambda text: text != "all"), min_size=1, max_size=3, unique=True))
    splitting = draw(splittings)
    splits = []
    for split in split_names:
        sizes = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=4))
        shards = tuple(
            Shard(
                str(ShardName(name, split, i, len(sizes))),
                records,
                draw(st.integers(records, records * spec.per_record)),
                records * record_bytes,
                draw(digests),
            )
            for i, records in enumerate(sizes)
        )
        fraction = None if splitting.by == "given" else f"{draw(st.decimals('0.01', 1, places=2))}"
        splits.append(Split(split, fraction, draw(st.integers(1, 2**20)), shards))
    total = sum(split.episodes for split in splits)
    episodes = draw(st.integers(1, total)) if splitting.by == "time" else total
    named = st.sampled_from([feature.name for feature in features])
    manifest = Manifest(
        name=name,
        window=spec,
        seed=draw(st.integers(0, 2**63 - 1)),
        features=features,
        source=Source(episodes, draw(counts), draw(counts), draw(counts), draw(counts), draw(counts)),
        splitting=splitting,
        splits=tuple(splits),
        statistics=(),
        nonfinite=tuple(
            Nonfinite(episode, feature, draw(st.integers(1, 2**40)), draw(counts))
            for episode, feature in sorted(draw(st.sets(st.tuples(counts, named), max_size=3)))
        ),
        episodes_sha256=draw(digests),
        fingerprint=draw(digests),
    )
    if draw(st.booleans()):
        return manifest
    measured = [feature for feature in features if feature.name in manifest.measured_features]
    return replace(manifest, statistics=tuple(draw(statistics_of(feature)) for feature in measured))


@settings(max_examples=50, deadline=None)
@given(manifests())
def test_every_manifest_comes_back(manifest: Manifest) -> None:
    text = format_manifest(manifest)

    assert parse_manifest(text) == manifest
    assert format_manifest(parse_manifest(text)) == text


def test_a_manifest_adds_up_its_shards() -> None:
    assert MANIFEST.windows == 28
    assert MANIFEST.bytes == 18 * RECORD_BYTES
    assert [(split.records, split.windows, split.bytes) for split in MANIFEST.splits] == [
        (15, 22, 15 * RECORD_BYTES),
        (3, 6, 3 * RECORD_BYTES),
    ]
    assert [split.firsts.tolist() for split in MANIFEST.splits] == [[0, 15, 22], [0, 6]]
    assert MANIFEST.layout.record_bytes == RECORD_BYTES


def test_statistics_are_of_the_training_split() -> None:
    train, test = MANIFEST.splits

    assert MANIFEST.training_split == "train"
    assert replace(MANIFEST, splits=(test, train)).training_split == "train"
    assert replace(MANIFEST, splits=(test, replace(train, name="rest"))).training_split == "test"


def test_features_along_time_have_statistics_unless_they_are_complex() -> None:
    features = tuple(Feature(f"{dtype}_{len(shape)}", dtype, shape) for dtype in DTYPES for shape in ((), (4,), (4, 2)))

    measured = replace(MANIFEST, features=features).measured_features

    assert measured == tuple(f"{dtype}_{axes}" for dtype in DTYPES for axes in (1, 2) if "complex" not in dtype)


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


# What may stand at a place instead of what DOCUMENT has there: the document is another one then, but not a wrong one.
ALSO_RIGHT: dict[Place, list[Any]] = {
    ("features", 2, "classes"): [[]],
    ("features", 2, "classes", 0): ["1"],
    ("features", 2, "classes", 1): ["1"],
    ("splitting", "group_by"): [None, "1"],
    ("splits", 0, "fraction"): ["1"],
    ("splits", 1, "fraction"): ["1"],
    ("statistics", "features"): [[]],
    ("nonfinite",): [[]],
}


@pytest.mark.parametrize("place", [place for place in places(DOCUMENT) if place], ids=lambda p: ".".join(map(str, p)))
def test_a_value_of_another_type_is_refused(place: Place) -> None:
    right = [at(DOCUMENT, place), *ALSO_RIGHT.get(place, [])]
    fractions = [] if type(right[0]) is float else [1.0]  # test_moments.py has which numbers are wrong
    for value in [None, True, False, -1, "1", [], {}, [None], 2**63, *fractions]:
        if not any(type(value) is type(other) and value == other for other in right):
            with pytest.raises((ManifestError, FormatVersionError), match=r"manifest\.json"):
                print(place, value, parse_manifest(changed(place, value)))  # what failed, if this does


@pytest.mark.parametrize("place", ALSO_RIGHT, ids=lambda p: ".".join(map(str, p)))
def test_what_is_right_as_well_is_read(place: Place) -> None:
    for value in ALSO_RIGHT[place]:
        manifest = parse_manifest(changed(place, value))
        assert json.loads(format_manifest(manifest)) == json.loads(changed(place, value))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("format",), "zarr", "format is 'zarr' where 'episode-windows' belongs"),
        (("format_version",), 0, "format_version is 0 where 1 belongs"),
        (("name",), "Demo", "name is 'Demo', which is no name"),
        (("name",), "../x", "no name"),
        (("name",), "other", r"splits\[0\].shards\[0\].file is 'demo-train"),
        (("window", "length"), 5, r"features\[0\].shape must begin with the steps of a record, 7"),
        (("window", "length"), 0, "window.length is 0, not a whole number of 1 or more"),
        (("window", "shift"), 0, "window.shift is 0, not a whole number of 1 or more"),
        (("window", "shift"), 3, r"features\[0\].shape must begin with the steps of a record, 7"),
        (("window", "stride"), 0, "window.stride is 0, not a whole number of 1 or more"),
        (("window", "stride"), 2, r"features\[0\].shape must begin with the steps of a record, 9"),
        (("window", "tail"), "keep", "window.tail is 'keep', none of drop, pad, align"),
        (("window", "windows_per_record"), 0, "windows_per_record is 0, not a whole number of 1 or more"),
        (("window", "windows_per_record"), 3, r"features\[0\].shape must begin with the steps of a record, 8"),
        (("window", "windows_per_record"), 1, r"features\[0\].shape must begin with the steps of a record, 4"),
        (("window", "windows_per_record"), 2**62, r"window.windows_per_record is \d+; less than 2147483648 is allowed"),
        (("window", "stride"), 2**31, r"window.stride is 2147483648; less than 2147483648 is allowed"),
        (("record_bytes",), 212, "record_bytes is 212 where 208 belongs"),
        (("features",), [], "features holds nothing along time"),
        (("features",), DOCUMENT["features"][1:], "features holds nothing along time"),
        (("features",), DOCUMENT["features"][:3], "features does not lie where this format puts it"),
        (("features",), DOCUMENT["features"][:4] + DOCUMENT["features"][5:], "features does not lie"),
        (("features",), DOCUMENT["features"][:2] + DOCUMENT["features"][1:], "features must be named apart"),
        (("features",), DOCUMENT["features"][::-1], "features does not lie"),
        (("features", 0, "dtype"), "float128", r"features\[0\].dtype is none of bool, int8"),
        (("features", 0, "dtype"), "uint8", "features does not lie"),
        (("features", 0, "shape"), [6, 2], "features does not lie where this format puts it"),
        (("features", 0, "shape"), [4, 3], "shape must begin with the steps of a record, 6"),
        (("features", 0, "shape"), [], "features holds nothing along time"),
        (("features", 0, "shape"), [6, 0], "array of 0 bytes"),
        (("features", 0, "shape"), [2**62, 2**62], "shape makes an array of .* bytes; 1 to 268435455"),
        (("features", 0, "offset"), 40, "does not lie"),
        (("features", 0, "offset"), 36.0, "features"),
        (("features", 0, "encoding"), "float_list", "does not lie"),
        (("features", 0, "classes"), ["a"], r"features\[0\].classes belong to an int64 value of an episode only"),
        (("features", 1, "classes"), ["a"], r"features\[1\].classes belong to an int64 value of an episode only"),
        (("features", 1, "shape"), [6], "features does not lie"),
        (("features", 1, "bytes"), 8, "features does not lie"),
        (("features", 1, "name"), "2nd", r"features\[1\].name is '2nd', which cannot name a feature"),
        (("features", 1, "name"), "a" * 101, "cannot name a feature"),
        (("features", 1, "name"), "mask", "features does not lie"),
        (("features", 2, "dtype"), "int32", r"features\[2\].classes belong to an int64 value of an episode only"),
        (("features", 2, "bytes"), 5, "features does not lie"),
        (("features", 3, "offset"), 137, "does not lie"),
        (("features", 3, "classes"), ["a"], "does not lie"),
        (("features", 4, "dtype"), "int32", "does not lie"),
        (("features", 5, "name"), "count", "does not lie"),
        (("features", 6, "name"), "begin", "does not lie"),
        (("features", 0, "name"), "episode", "features"),
        (("source", "episodes"), 4, "source.episodes is not the sum of the splits' episodes"),
        (("source", "episodes"), 2, "source.episodes is not the sum of the splits' episodes"),
        (("splitting", "by"), "random", "splitting.by is 'random', none of episode, time, hash, given"),
        (("splitting", "by"), "time", "splitting.group_by cannot be, where episodes are split by time"),
        (("splitting", "purge"), 1, "splitting.purge cannot be, where episodes are not split by time"),
        (("splitting",), {"by": "time", "group_by": None, "purge": -1}, "splitting.purge is -1"),
        (("splits",), [], "splits must be named apart, and one at least"),
        (("splits", 1, "name"), "train", "damaged: splits"),
        (("splits", 0, "name"), "all", "'all', which cannot name a split"),
        (("splits", 0, "fraction"), "most", r"splits\[0\].fraction"),
        (("splits", 0, "fraction"), "1e-1", r"splits\[0\].fraction is '1e-1', not a decimal number"),
        (("splits", 0, "fraction"), "0.8\n", r"splits\[0\].fraction"),
        (("splits", 0, "fraction"), "\N{ARABIC-INDIC DIGIT ONE}", r"splits\[0\].fraction"),
        (("splits", 0, "windows"), 21, r"splits\[0\].windows is 21 where 22 belongs"),
        (("splits", 0, "records"), 14, r"splits\[0\].records is 14 where 15 belongs"),
        (("splits", 0, "bytes"), 14, r"splits\[0\].bytes is 14 where 3120 belongs"),
        (("splits", 0, "shards"), [], r"splits\[0\].shards is empty"),
        (("splits", 0, "shards", 1, "bytes"), 1, r"splits\[0\].shards\[1\].bytes is 1 where 1456 belongs"),
        (("splits", 0, "shards", 1, "records"), 8, r"splits\[0\].shards\[1\].windows is 7, not a whole number of 8"),
        (("splits", 0, "shards", 1, "records"), 0, r"splits\[0\].shards\[1\].records is 0, not a whole number of 1"),
        (("splits", 0, "shards", 0, "windows"), 17, r"shards\[0\].windows are too many for 8 records of 2"),
        (("splits", 0, "shards", 0, "windows"), 16, r"splits\[0\].windows is 22 where 23 belongs"),
        (("splits", 0, "shards", 0, "file"), "/etc/passwd", r"file is '/etc/passwd' where 'demo-train"),
        (("splits", 0, "shards", 0, "sha256"), "A" * 64, "not a SHA-256 digest"),
        (("splits", 0, "shards", 0, "sha256"), "a" * 63, "not a SHA-256 digest"),
        (("statistics", "split"), "test", "statistics.split is 'test' where 'train' belongs"),
        (("statistics", "features", 0, "feature"), "gain", "statistics.features must be those of window"),
        (("statistics", "features", 0, "total", "count"), 4, "total.count is not the sum of the components'"),
        (("statistics", "features", 0, "total", "std"), -0.5, r"features\[0\].total.std is -0.5, less than 0"),
        (("statistics", "features"), DOCUMENT["statistics"]["features"] * 2, "features must be those of window"),
        (("nonfinite", 0, "feature"), "loss", r"nonfinite\[0\].feature is 'loss', none of window, gain, speaker"),
        (("nonfinite", 0, "feature"), "episode", r"nonfinite\[0\].feature is 'episode', none of"),
        (("nonfinite", 0, "values"), 0, r"nonfinite\[0\].values is 0, not a whole number of 1 or more"),
        (("nonfinite", 0, "step"), -1, r"nonfinite\[0\].step is -1"),
        (
            ("nonfinite",),
            2 * [{"episode": 2, "feature": "gain", "values": 1, "step": 30}],
            "nonfinite must have 100 entries at most, in order of episode and feature",
        ),
        (
            ("nonfinite",),
            [{"episode": i, "feature": "gain", "values": 1, "step": 30} for i in range(101)],
            "nonfinite must have 100 entries at most",
        ),
        (("episodes_file", "file"), "../episodes.csv", "episodes_file.file is '../episodes.csv'"),
        (("episodes_file", "sha256"), "", "not a SHA-256 digest"),
        (("fingerprint",), "e" * 65, "fingerprint is .* not a SHA-256 digest"),
    ],
)
def test_a_contradiction_is_named(place: Place, value: Any, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        parse_manifest(changed(place, value))


def test_statistics_have_a_component_for_each_entry_of_the_last_axis() -> None:
    (statistics,) = MANIFEST.statistics
    first, second, third = statistics.components
    for components in ((first, second), (first, second, third, third)):
        wrong = replace(MANIFEST, statistics=(replace(statistics, components=components),))
        with pytest.raises(ManifestError, match=r"statistics\.features must have 3 components for window"):
            parse_manifest(format_manifest(wrong))
    (flat,) = (replace(feature, shape=(4,)) for feature in MANIFEST.features[:1])
    with pytest.raises(ManifestError, match=r"statistics\.features must have 1 components for window"):
        parse_manifest(resized(replace(MANIFEST, features=(flat,), nonfinite=())))


def test_statistics_come_in_the_order_of_the_features() -> None:
    (statistics,) = MANIFEST.statistics
    window = MANIFEST.features[0]
    both = replace(
        MANIFEST,
        features=(window, replace(window, name="action")),
        statistics=(statistics, replace(statistics, feature="action")),
        nonfinite=(),
    )

    assert parse_manifest(resized(both)).statistics == both.statistics
    for wrong in (both.statistics[::-1], both.statistics[:1], (*both.statistics, statistics)):
        with pytest.raises(ManifestError, match=r"statistics\.features must be those of window, action"):
            parse_manifest(resized(replace(both, statistics=wrong)))


def resized(manifest: Manifest) -> bytes:
    """A manifest as JSON, its shards as large as its records make them."""
    size = manifest.layout.record_bytes
    splits = tuple(
        replace(split, shards=tuple(replace(shard, bytes=shard.records * size) for shard in split.shards))
        for split in manifest.splits
    )
    return format_manifest(replace(manifest, splits=splits))


@pytest.mark.parametrize("by", ["episode", "hash"])
def test_groups_are_for_whole_episodes(by: str) -> None:
    document = DOCUMENT | {"splitting": {"by": by, "group_by": "^[a-z]+", "purge": 0}}

    assert parse_manifest(json.dumps(document).encode()).splitting == Splitting(by, "^[a-z]+", 0)  # type: ignore[arg-type]


def test_an_episode_that_is_split_by_time_is_in_several_splits() -> None:
    document = deepcopy(DOCUMENT) | {"splitting": {"by": "time", "group_by": None, "purge": 9}}
    for episodes in (1, 2, 3):
        document["source"]["episodes"] = episodes
        assert parse_manifest(json.dumps(document).encode()).source.episodes == episodes
    document["source"]["episodes"] = 4
    with pytest.raises(ManifestError, match=r"source\.episodes is not the sum"):
        parse_manifest(json.dumps(document).encode())


def test_splits_that_were_given_have_no_fraction() -> None:
    given = replace(
        MANIFEST,
        splitting=Splitting("given", "speaker"),
        splits=tuple(replace(split, fraction=None) for split in MANIFEST.splits),
    )

    assert [split["fraction"] for split in json.loads(format_manifest(given))["splits"]] == [None, None]
    assert parse_manifest(format_manifest(given)) == given
    for wrong in (replace(given, splitting=Splitting("hash")), replace(given, splits=MANIFEST.splits)):
        with pytest.raises(ManifestError, match=r"splits\[0\]\.fraction"):
            parse_manifest(format_manifest(wrong))


def test_one_window_a_record_makes_as_many_records() -> None:
    one = replace(MANIFEST, window=WindowSpec(4, 2), features=MANIFEST.features[:1], nonfinite=())

    with pytest.raises(ManifestError, match=r"splits\[0\]\.shards\[0\]\.windows are too many for 8 records of 1"):
        parse_manifest(resized(one))


def test_many_places_that_are_not_finite_are_read() -> None:
    many = replace(MANIFEST, nonfinite=tuple(Nonfinite(i, "gain", 1, 0) for i in range(MAX_NONFINITE)))

    assert MAX_NONFINITE == 100
    assert parse_manifest(format_manifest(many)) == many


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
