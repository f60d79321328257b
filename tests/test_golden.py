"""The committed dataset of format version 1: read as it was written, and written again byte for byte.

If a test here fails, the format or the plan has changed: that needs a new format version and a new folder beside this
one, which must stay readable.
"""

from pathlib import Path

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from pipeline import BuildOptions, build
from reader import load
from shards import open_dataset

GOLDEN = Path(__file__).parent / "golden" / "v1"
OPTIONS = {
    "window_length": 4,
    "shift": 3,
    "name": "golden",
    "seed": 20261201,
    "splits": {"train": "0.75", "test": "0.25"},
    "num_shards": {"train": 2, "test": 1},
}


def episodes(dtype: str) -> dict[str, np.ndarray]:
    """Five episodes, one too short; step t of episode e holds 100 e + t and its negative."""
    lengths = {"a": 10, "b/deep": 3, "b/wide": 13, "c": 4, "d": 25}
    return {
        name: np.stack([100 * e + np.arange(steps), -(100 * e + np.arange(steps))], axis=1).astype(dtype)
        for e, (name, steps) in enumerate(lengths.items())
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_the_golden_dataset_is_written_again_byte_for_byte(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, dtype: str
) -> None:
    build_here(save_episodes(tmp_path / "in", episodes(dtype)), tmp_path / "out", **OPTIONS)
    assert contents(tmp_path / "out") == contents(GOLDEN / dtype)


def test_beam_writes_the_same(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    inputs = save_episodes(tmp_path / "in", episodes("float32"))
    build(BuildOptions(inputs=(inputs,), output=str(tmp_path / "out"), **OPTIONS))  # type: ignore[arg-type]
    assert contents(tmp_path / "out") == contents(GOLDEN / "float32")


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_the_golden_dataset_is_read_as_it_was_written(dtype: str) -> None:
    dataset = open_dataset(GOLDEN / dtype)
    assert {split: len(windows) for split, windows in dataset.items()} == {"train": 11, "test": 5}
    assert dataset["test"].locate(0) == ("c.npy", 0)
    assert dataset["test"][0]["window"].tolist() == [[300, -300], [301, -301], [302, -302], [303, -303]]
    assert dataset["test"][0]["window"].dtype == dtype
    assert dataset.episode_paths == ("a.npy", "b/deep.npy", "b/wide.npy", "c.npy", "d.npy")


def test_the_order_of_the_golden_stream_is_pinned() -> None:
    stream = load(GOLDEN / "float32", batch_size=5, seed=1, provenance=True)
    first = next(stream.as_numpy_iterator())
    assert list(zip(first["episode"].tolist(), first["start"].tolist(), strict=True)) == [
        (0, 0),
        (4, 18),
        (4, 0),
        (0, 6),
        (4, 6),
    ]
