"""Shards as others read them: TensorFlow's own TFRecord and Example parsers, TFDS, and NumPy by the format's recipe."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere, SaveEpisodes, WindowsOf
from shards.features import DTYPES

ROOT = Path(__file__).parent.parent
LENGTH, SHIFT = 6, 2


def random_episodes(dtype: str, step_shape: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    nbytes = DTYPES[dtype].itemsize * int(np.prod(step_shape))
    return [
        random.integers(0, 2 if dtype == "bool" else 256, (steps, nbytes), np.uint8)
        .view(DTYPES[dtype])
        .reshape(steps, *step_shape)
        for steps in (20, 5, 33)
    ]


@pytest.fixture(params=[(d, s) for d in sorted(DTYPES) for s in ((), (3, 2))], ids=lambda p: f"{p[0]}-{len(p[1])}")
def made(
    request: pytest.FixtureRequest, tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> tuple[Path, str, list[np.ndarray]]:
    dtype, step_shape = request.param
    episodes = random_episodes(dtype, step_shape)
    splits = {"train": "0.5", "validation": "0.5"}
    inputs = save_episodes(tmp_path / "in", episodes)
    build_here(inputs, tmp_path / "out", window_length=LENGTH, shift=SHIFT, splits=splits, num_shards=2, name="noise")
    return tmp_path / "out", dtype, episodes


def test_tensorflow_parses_every_record(made: tuple[Path, str, list[np.ndarray]], windows_of: WindowsOf) -> None:
    folder, dtype, episodes = made
    shape = (LENGTH, *episodes[0].shape[1:])
    raw = tf.io.FixedLenFeature(shape, tf.float32) if dtype == "float32" else tf.io.FixedLenFeature((), tf.string)
    scalar = tf.io.FixedLenFeature((), tf.int64)
    features = {"window": raw, "episode": scalar, "start": scalar}
    found = {}
    for record in tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord-*"))), buffer_size=2**20):
        parsed = tf.io.parse_single_example(record, features)
        value = parsed["window"].numpy()
        found[int(parsed["episode"]), int(parsed["start"])] = value if isinstance(value, bytes) else value.tobytes()
    assert found == windows_of(episodes, LENGTH, SHIFT)


def test_protocol_buffers_parse_every_record(made: tuple[Path, str, list[np.ndarray]], windows_of: WindowsOf) -> None:
    folder, _, episodes = made
    found = {}
    for record in tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord-*"))), buffer_size=2**20):
        feature = tf.train.Example.FromString(record.numpy()).features.feature
        window = feature["window"]
        value = np.array(window.float_list.value, "<f4").tobytes() if window.float_list.value else None
        key = feature["episode"].int64_list.value[0], feature["start"].int64_list.value[0]
        found[key] = value or window.bytes_list.value[0]
    expected = windows_of(episodes, LENGTH, SHIFT)
    if made[1] == "float32":  # Python floats may change the payload of a NaN: compare as numbers
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert np.array_equal(np.frombuffer(value, "<f4"), np.frombuffer(expected[key], "<f4"), equal_nan=True)
    else:
        assert found == expected


# TFDS, with Protocol Buffers 6, calls a deprecated method of theirs.
@pytest.mark.filterwarnings("ignore:label\\(\\) is deprecated:DeprecationWarning")
def test_tfds_reads_every_window(made: tuple[Path, str, list[np.ndarray]], windows_of: WindowsOf) -> None:
    import tensorflow_datasets as tfds

    folder, dtype, episodes = made
    builder = tfds.builder_from_directory(folder)
    assert builder.name == "noise"
    found = {}
    for split in ("train", "validation"):
        read = builder.as_dataset(split=split)
        assert int(read.cardinality()) == builder.info.splits[split].num_examples
        for example in read:
            window = example["window"].numpy()
            assert window.dtype == (np.uint8 if dtype == "uint32" else DTYPES[dtype])
            assert window.shape == (LENGTH, *episodes[0].shape[1:], *([4] if dtype == "uint32" else []))
            found[int(example["episode"]), int(example["start"])] = window.tobytes()
    assert found == windows_of(episodes, LENGTH, SHIFT)


def test_the_recipe_of_the_format_reads_a_shard(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    episodes = random_episodes("float64", (2,))
    dataset = build_here(save_episodes(tmp_path / "in", episodes), tmp_path / "out", window_length=6, shift=2)
    monkeypatch.chdir(tmp_path)
    names: dict[str, np.ndarray] = {}
    exec(code, names)
    windows = names["windows"]
    assert windows.shape == (22, 6, 2)
    assert windows.tobytes() == dataset["train"][:]["window"].tobytes()
