"""The committed datasets of format version 1: read as they were written, and written again byte for byte.

If a test here fails, the format or the plan has changed: that needs a new format version and a new folder beside this
one, which must stay readable.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from pipeline import BuildOptions, build
from reader import load
from shards import open_dataset
from shards.manifest import Nonfinite
from shards.verify import verify

GOLDEN = Path(__file__).parent / "golden" / "v1"
PLAIN = {
    "window_length": 4,
    "shift": 3,
    "name": "golden",
    "seed": 20261201,
    "splits": {"train": "0.75", "test": "0.25"},
    "num_shards": {"train": 2, "test": 1},
}
#: Several arrays, values of the whole episode, labels, groups of episodes, padded windows.
ARCHIVE = {
    "window_length": 5,
    "shift": 4,
    "tail": "pad",
    "dtype": {"gain": "float32"},
    "group_by": "speaker",
    "name": "golden",
    "seed": 20261202,
    "splits": {"train": "0.6", "test": "0.4"},
    "num_shards": 2,
}
#: Records of several windows with steps apart, the last one aligned; every episode is cut in two.
SHARED = {
    "window_length": 3,
    "shift": 3,
    "stride": 2,
    "tail": "align",
    "windows_per_record": 4,
    "split_by": "time",
    "purge": 1,
    "name": "golden",
    "seed": 20261203,
    "splits": {"train": "0.75", "test": "0.25"},
    "num_shards": {"train": 2, "test": 1},
}
KINDS = ["float32", "int16", "archive", "shared"]


def episodes(dtype: str) -> dict[str, np.ndarray]:
    """Five episodes, one too short; step t of episode e holds 100 e + t and its negative."""
    lengths = {"a": 10, "b/deep": 3, "b/wide": 13, "c": 4, "d": 25}
    return {
        name: np.stack([100 * e + np.arange(steps), -(100 * e + np.arange(steps))], axis=1).astype(dtype)
        for e, (name, steps) in enumerate(lengths.items())
    }


def archives() -> dict[str, dict[str, np.ndarray]]:
    """Six episodes; `x` has fractions that binary numbers must round, and two values that are not finite."""
    found = {}
    for e, steps in enumerate((9, 2, 16, 5, 23, 11)):
        t = np.arange(steps)
        x = np.stack([(t * t + e) % 7 / 7, 1000 + t / 3, -t / (e + 1)], axis=1)
        x[:2, 1] = [np.nan, -np.inf] if e == 2 else [5, 6]
        image = ((7 * t[:, None, None] + 3 * np.arange(4).reshape(2, 2) + e) % 256).astype(np.uint8)
        values = {"gain": np.float64(0.1 * e), "mass": np.float64(e / 9), "id": np.int64(-e), "good": np.bool_(e % 2)}
        found[f"e{e}"] = {"x": x, "image": image, "done": t == steps - 1, **values}
    return found


def save_inputs(folder: Path, kind: str, save_episodes: SaveEpisodes) -> tuple[str, dict[str, Any]]:
    """Save the episodes that a golden dataset was made from: (their folder, its options)."""
    if kind != "archive":
        dtype = "int32" if kind == "shared" else kind
        return save_episodes(folder / "in", episodes(dtype)), SHARED if kind == "shared" else PLAIN
    (folder / "in").mkdir()
    for name, arrays in archives().items():
        np.savez(folder / "in" / f"{name}.npz", **arrays)
    speakers = ("bob", "eve", "ann", "eve", "cy d", "bob")
    rows = "".join(f"e{e}.npz,{speaker},{e / 4}\n" for e, speaker in enumerate(speakers))
    (folder / "labels.csv").write_text("path,speaker,level\n" + rows)
    return str(folder / "in"), {**ARCHIVE, "labels": str(folder / "labels.csv")}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_golden_dataset_is_written_again_byte_for_byte(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, kind: str
) -> None:
    inputs, options = save_inputs(tmp_path, kind, save_episodes)
    build_here(inputs, tmp_path / "out", **options)
    assert contents(tmp_path / "out") == contents(GOLDEN / kind)


@pytest.mark.parametrize("kind", ["float32", "archive", "shared"])
def test_beam_writes_the_same(tmp_path: Path, save_episodes: SaveEpisodes, kind: str) -> None:
    inputs, options = save_inputs(tmp_path, kind, save_episodes)
    build(BuildOptions(inputs=(inputs,), output=str(tmp_path / "out"), **options))
    assert contents(tmp_path / "out") == contents(GOLDEN / kind)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_the_golden_dataset_is_read_as_it_was_written(dtype: str) -> None:
    dataset = open_dataset(GOLDEN / dtype)
    assert {split: len(windows) for split, windows in dataset.items()} == {"train": 12, "test": 4}
    assert dataset["test"].locate(0) == ("b/wide.npy", 6)
    assert dataset["test"][0]["window"].tolist() == [[206, -206], [207, -207], [208, -208], [209, -209]]
    assert dataset["test"][0]["window"].dtype == dtype
    assert dataset.episode_paths == ("a.npy", "b/deep.npy", "b/wide.npy", "c.npy", "d.npy")


def test_the_golden_dataset_of_archives_is_read_as_it_was_written() -> None:
    dataset = open_dataset(GOLDEN / "archive")
    assert {split: len(windows) for split, windows in dataset.items()} == {"train": 10, "test": 7}
    test = dataset["test"]
    assert [test.locate(i) for i in (0, 3)] == [("e5.npz", 4), ("e5.npz", 8)]
    padded = test[3]
    assert {name: value.tolist() for name, value in padded.items() if name not in {"x", "image"}} == {
        "done": [False, False, True, False, False],
        "gain": 0.5,
        "good": True,
        "id": -5,
        "mass": 5 / 9,
        "speaker": 1,
        "level": 1.25,
        "valid": 3,
    }
    assert padded["image"].tolist() == [
        *([[first, first + 3], [first + 6, first + 9]] for first in (61, 68, 75)),
        *[[[0, 0], [0, 0]]] * 2,
    ]
    assert padded["x"][2].tolist() == [0.0, 1000 + 10 / 3, -10 / 6]
    assert dataset.manifest.features[7].classes == ("ann", "bob", "cy d", "eve")
    assert dataset.manifest.nonfinite == (Nonfinite(episode=2, feature="x", values=2, step=0),)
    assert sorted(set(test[:]["speaker"].tolist())) == [1, 3]


def test_the_golden_dataset_of_shared_records_is_read_as_it_was_written() -> None:
    dataset = open_dataset(GOLDEN / "shared")
    held = {
        split: list(zip(windows.provenance()["episode"].tolist(), windows[:]["window"][..., 0].tolist(), strict=True))
        for split, windows in dataset.items()
    }
    assert held == {
        "train": [
            (4, [412, 414, 416]),
            (2, [200, 202, 204]),
            (0, [0, 2, 4]),
            (0, [3, 5, 7]),
            (0, [5, 7, 9]),  # the aligned one
            (4, [400, 402, 404]),
            (4, [403, 405, 407]),
            (4, [406, 408, 410]),
            (4, [409, 411, 413]),
        ],
        "test": [(4, [418, 420, 422]), (4, [420, 422, 424]), (2, [206, 208, 210]), (2, [208, 210, 212])],
    }
    assert [split.records for split in dataset.manifest.splits] == [4, 2]
    assert dataset["train"][0]["window"].tolist() == [[412, -412], [414, -414], [416, -416]]
    assert dataset["test"].locate(-1) == ("b/wide.npy", 8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_golden_datasets_have_no_fault(kind: str) -> None:
    assert verify(GOLDEN / kind) == []


def test_the_order_of_the_golden_stream_is_pinned() -> None:
    stream = load(GOLDEN / "float32", batch_size=5, seed=1, provenance=True)
    first = next(stream.as_numpy_iterator())
    assert list(zip(first["episode"].tolist(), first["start"].tolist(), strict=True)) == [
        (4, 21),
        (4, 15),
        (3, 0),
        (0, 0),
        (0, 6),
    ]
