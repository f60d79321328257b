"""Datasets of every kind as TensorFlow Datasets reads them, and as TensorFlow's own parser of Examples does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere
from shards import Dataset
from shards.features import DTYPES

# TFDS, with Protocol Buffers 6, calls a deprecated method of theirs.
pytestmark = pytest.mark.filterwarnings("ignore:label\\(\\) is deprecated:DeprecationWarning")

SPEAKERS = ["bob", "ann", "eve", "bob"]
STEPS = [20, 9, 31, 14]


def episode(number: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(number)
    return {
        "x": random.normal(size=(STEPS[number], 2)).astype("f4"),
        "image": random.integers(0, 256, (STEPS[number], 2, 3), np.uint8),
        "gain": np.float64(random.normal()),
        "mass": np.float32(random.normal()),
        "id": np.int32(-5 - number),
        "code": np.int64(-(2**60) - number),
        "half": np.float16(0.5 + number),
        "word": np.uint32(2**32 - 1 - number),
        "flag": np.bool_(number % 2),
    }


EPISODES = [episode(number) for number in range(len(STEPS))]
VALUES = [name for name, array in EPISODES[0].items() if not array.shape]


@pytest.fixture
def build(tmp_path: Path, build_here: BuildHere) -> Any:
    (tmp_path / "in").mkdir()
    for number, arrays in enumerate(EPISODES):
        np.savez(tmp_path / "in" / f"e{number}.npz", **arrays)
    lines = (f"e{number}.npz,{speaker},{number - 1}\n" for number, speaker in enumerate(SPEAKERS))
    (tmp_path / "labels.csv").write_text("path,speaker,level\n" + "".join(lines))

    def run(**options: Any) -> Dataset:
        chosen = {"window_length": 6, "shift": 4, "labels": str(tmp_path / "labels.csv"), "name": "rich", **options}
        return build_here(str(tmp_path / "in"), tmp_path / "out", **chosen)

    return run


def by_tfds(dataset: Dataset) -> tuple[Any, list[dict[str, np.ndarray]]]:
    """(the builder's info, all examples of split train)."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(dataset.folder)
    return builder.info, list(builder.as_dataset(split="train").as_numpy_iterator())


def key(example: dict[str, Any]) -> tuple[int, int]:
    return int(example["episode"]), int(example["start"])


def check_values(example: dict[str, Any]) -> None:
    """The values of the whole episode are what its file and its labels have."""
    number = int(example["episode"])
    for name in VALUES:
        value, expected = np.asarray(example[name]), EPISODES[number][name]
        assert value.shape == ((4,) if name == "word" else ())  # the bytes of an uint32; see shards/tfds.py
        assert value.dtype == (np.uint8 if name == "word" else expected.dtype)
        assert value.tobytes() == expected.tobytes()
    assert (int(example["level"]), int(example["speaker"])) == (
        number - 1,
        ["ann", "bob", "eve"].index(SPEAKERS[number]),
    )


def test_tfds_reads_features_values_and_labels(build: Any) -> None:
    dataset = build(splits={"train": "0.75", "test": "0.25"})
    info, examples = by_tfds(dataset)

    assert info.features.keys() == {field.feature.name for field in dataset.manifest.layout.fields}
    assert {name: info.splits[name].num_examples for name in info.splits} == {
        split.name: split.windows for split in dataset.manifest.splits
    }
    expected = {}
    for at, where in enumerate(zip(*dataset["train"].provenance().values(), strict=True)):
        expected[int(where[0]), int(where[1])] = dataset["train"][at]
    assert {key(example) for example in examples} == expected.keys()
    for example in examples:
        check_values(example)
        for name in ("x", "image"):
            assert example[name].dtype == EPISODES[0][name].dtype
            assert np.array_equal(example[name], expected[key(example)][name])


def test_tfds_knows_the_names_of_classes(build: Any) -> None:
    info, examples = by_tfds(build())
    label = info.features["speaker"]

    assert label.names == ["ann", "bob", "eve"]
    assert label.num_classes == 3
    assert label.str2int("bob") == 1
    for example in examples:
        assert label.int2str(int(example["speaker"])) == SPEAKERS[int(example["episode"])]
    assert not hasattr(info.features["level"], "names")


def test_tfds_reads_records_of_several_windows_as_their_steps(build: Any) -> None:
    dataset = build(tail="align", stride=2, windows_per_record=3)
    spec = dataset.manifest.window
    info, examples = by_tfds(dataset)

    assert spec.record_steps == 19
    assert info.splits["train"].num_examples == dataset.manifest.splits[0].records < dataset.manifest.windows
    found = set()
    for example in examples:
        check_values(example)
        (number, start), count, valid = key(example), int(example["count"]), int(example["valid"])
        assert 1 <= count <= 3
        assert spec.count(valid) >= count
        for name in ("x", "image"):
            real = EPISODES[number][name][start : start + valid]
            assert example[name].shape == (19, *real.shape[1:])
            assert np.array_equal(example[name][:valid], real)
            assert not example[name][valid:].any()
        found |= {(number, start + int(spec.start(k, valid))) for k in range(count)}  # as docs/format.md has it
    where = dataset["train"].provenance()
    assert found == set(zip(where["episode"].tolist(), where["start"].tolist(), strict=True))
    assert len(found) == dataset.manifest.windows


def test_tfds_reads_padded_windows_with_their_real_steps(build: Any) -> None:
    dataset = build(tail="pad")
    _, examples = by_tfds(dataset)

    assert {int(example["valid"]) for example in examples} > {6}
    for example in examples:
        (number, start), valid = key(example), int(example["valid"])
        assert valid == min(6, STEPS[number] - start)
        assert np.array_equal(example["x"][:valid], EPISODES[number]["x"][start : start + valid])
        assert not example["x"][valid:].any()
        assert not example["image"][valid:].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_tfds_reads_a_value_of_the_whole_episode_of_every_dtype(
    tmp_path: Path, build_here: BuildHere, dtype: str
) -> None:
    (tmp_path / "in").mkdir()
    bits = np.random.default_rng(0).integers(0, 64, (3, DTYPES[dtype].itemsize), np.uint8)  # no NaN
    values = (bits & 1 if dtype == "bool" else bits).view(DTYPES[dtype])[:, 0]
    if dtype == "bfloat16":  # NumPy's files know it as bytes of no meaning: as a float32 that it can hold
        stored = values.astype(np.float32)
    for number in range(3):
        value = stored[number] if dtype == "bfloat16" else values[number]
        np.savez(tmp_path / "in" / f"{number}.npz", x=np.zeros(4), value=value)
    dataset = build_here(str(tmp_path / "in"), tmp_path / "out", window_length=4, dtype={"value": dtype})

    _, examples = by_tfds(dataset)

    assert {int(example["episode"]): example["value"].tobytes() for example in examples} == {
        number: values[number].tobytes() for number in range(3)
    }


@pytest.mark.parametrize("words", [["b c", "a  d", "e", "f"], ["ünï", "日本", "z,z", 'q"q'], ["x\ny", "w", "v", "u"]])
def test_class_names_of_any_words(tmp_path: Path, build_here: BuildHere, words: list[str]) -> None:
    (tmp_path / "in").mkdir()
    rows = []
    for number, word in enumerate(words):
        np.save(tmp_path / "in" / f"{number}.npy", np.full(5, number))
        quoted = word.replace('"', '""')
        rows.append(f'{number}.npy,"{quoted}"\n')
    (tmp_path / "labels.csv").write_text("path,kind\n" + "".join(rows))
    dataset = build_here(str(tmp_path / "in"), tmp_path / "out", window_length=5, labels=str(tmp_path / "labels.csv"))
    info, examples = by_tfds(dataset)

    assert dataset.manifest.features[-1].classes == tuple(sorted(words))
    assert info.features["kind"].names == [" ".join(word.split()) for word in sorted(words)]
    for example in examples:
        assert dataset.manifest.features[-1].classes[example["kind"]] == words[example["window"][0]]


@pytest.mark.parametrize("words", [["b c", "b  c"], ["a\tb", "a b"]])
def test_class_names_that_differ_in_spaces_alone(tmp_path: Path, build_here: BuildHere, words: list[str]) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        np.save(tmp_path / "in" / f"{number}.npy", np.full(5, number))
    rows = "".join(f'{number}.npy,"{word}"\n' for number, word in enumerate(words))
    (tmp_path / "labels.csv").write_text("path,kind\n" + rows)
    dataset = build_here(str(tmp_path / "in"), tmp_path / "out", window_length=5, labels=str(tmp_path / "labels.csv"))

    info, examples = by_tfds(dataset)

    assert info.features["kind"].num_classes == len(info.features["kind"].names) == 2
    for example in examples:
        assert dataset.manifest.features[-1].classes[example["kind"]] == words[example["window"][0]]


def test_names_of_features_may_have_dots_and_dashes(tmp_path: Path, build_here: BuildHere) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        np.savez(tmp_path / "in" / f"{number}.npz", **{"obs.image-left": np.full((5, 2), number), "Act_1": np.ones(5)})
    (tmp_path / "labels.csv").write_text("path,task.name-2\n0.npz,a\n1.npz,b\n")
    dataset = build_here(str(tmp_path / "in"), tmp_path / "out", window_length=5, labels=str(tmp_path / "labels.csv"))

    info, examples = by_tfds(dataset)

    assert info.features["task.name-2"].names == ["a", "b"]
    assert {example["task.name-2"]: example["obs.image-left"].tolist() for example in examples} == {
        number: [[number] * 2] * 5 for number in range(2)
    }


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("per_record", [1, 3])
def test_tensorflow_parses_what_the_format_promises(build: Any, tail: str, per_record: int) -> None:
    dataset = build(tail=tail, windows_per_record=per_record, num_shards=2)
    layout = dataset.manifest.layout
    spec: dict[str, tf.io.FixedLenFeature] = {}
    for field in layout.fields:
        kind = {"float_list": tf.float32, "varint": tf.int64, "bytes": tf.string}[field.encoding]
        spec[field.feature.name] = tf.io.FixedLenFeature(() if kind == tf.string else field.feature.shape, kind)
    records = tf.data.TFRecordDataset([str(dataset.folder / shard.file) for shard in dataset["train"].split.shards])

    parsed = tf.io.parse_example(list(records.as_numpy_iterator()), spec)

    assert len(parsed["start"]) == dataset.manifest.splits[0].records
    for i in range(len(parsed["start"])):
        example: dict[str, Any] = {}
        for field in layout.fields:
            value = parsed[field.feature.name][i].numpy()
            raw = value if isinstance(value, bytes) else value.tobytes()
            example[field.feature.name] = np.frombuffer(raw, field.feature.numpy_dtype).reshape(field.feature.shape)
        number, start = key(example)
        valid = int(example.get("valid", spec["x"].shape[0]))
        assert np.array_equal(example["x"][:valid], EPISODES[number]["x"][start : start + valid])
        assert np.array_equal(example["image"][:valid], EPISODES[number]["image"][start : start + valid])
        for name in VALUES:
            assert example[name] == EPISODES[number][name]
