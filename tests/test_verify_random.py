"""Random datasets verify clean, beside their source too; and any byte of one that is changed or cut off is found."""

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes
from shards import Dataset, load_manifest
from shards.errors import DatasetError
from shards.features import DTYPES
from shards.verify import verify

RANDOM = np.random.default_rng(5)


def noise(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values of a dtype, among them some that are not finite."""
    values = RANDOM.standard_normal(shape) * 50
    if np.dtype(DTYPES[dtype]).kind in "fcV" or dtype == "bfloat16":
        values[RANDOM.random(shape) < 0.02] = RANDOM.choice([np.nan, np.inf, -np.inf, -0.0])
        return values.astype(DTYPES[dtype])
    return (np.abs(values).astype(int) % (2 if dtype == "bool" else 100)).astype(DTYPES[dtype])


def save_archive(file: Path, arrays: dict[str, np.ndarray], compressed: bool) -> None:
    (np.savez_compressed if compressed else np.savez)(file, **arrays)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[str, dict[str, np.ndarray], dict[str, Any]]:
    """(kind of files, an episode of 40 steps as arrays, options)."""
    kind = draw(st.sampled_from(["plain", "fortran", "fields", "archive", "compressed"]))
    names = draw(st.sampled_from([["a"], ["a", "b"]])) if kind not in {"plain", "fortran"} else ["window"]
    big = draw(st.booleans())
    arrays = {}
    for name in names:
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        array = noise((40, *draw(st.sampled_from([(), (3,), (2, 2)]))), dtype)
        arrays[name] = array.astype(array.dtype.newbyteorder(">")) if big and dtype != "bfloat16" else array
    options: dict[str, Any] = {
        "window_length": draw(st.integers(1, 6)),
        "shift": draw(st.integers(1, 8)),
        "stride": draw(st.integers(1, 3)),
        "tail": draw(st.sampled_from(["drop", "pad", "align"])),
        "windows_per_record": draw(st.sampled_from([1, 1, 2, 5])),
        "num_shards": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 9)),
    }
    if draw(st.booleans()):
        options |= {"splits": {"train": "0.6", "test": "0.4"}, "split_by": draw(st.sampled_from(["episode", "time"]))}
    floats = [name for name, array in arrays.items() if array.dtype.name in {"float32", "float64"}]
    if floats and draw(st.booleans()):
        options["dtype"] = dict.fromkeys(floats, "float16")
    return kind, arrays, options


@settings(max_examples=60, deadline=None)
@given(drawn=datasets())
def test_a_random_dataset_is_whole_and_has_the_bits_of_its_source(
    drawn: tuple[str, dict[str, np.ndarray], dict[str, Any]],
    build_here: BuildHere,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    kind, arrays, options = drawn
    folder = tmp_path_factory.mktemp("random")
    source = folder / "in"
    source.mkdir()
    for number, steps in enumerate((40, 33, 24, 17)):
        parts = {name: array[:steps] for name, array in arrays.items()}
        if kind in {"plain", "fortran"}:
            (array,) = parts.values()
            np.save(source / f"{number}.npy", np.asfortranarray(array) if kind == "fortran" else array)
        elif kind == "fields":
            table = np.zeros(steps, [(name, array.dtype, array.shape[1:]) for name, array in parts.items()])
            for name, array in parts.items():
                table[name] = array
            np.save(source / f"{number}.npy", table)
        else:
            gain = np.asarray(number / 3).astype(ml_dtypes.bfloat16)
            values = {"gain": gain, "id": np.asarray(number - 2), "odd": np.asarray(number % 2 == 1)}
            save_archive(source / f"{number}.npz", parts | values, kind == "compressed")
    dataset = build_here(str(source), folder / "out", **options)
    assert verify(dataset.folder, source) == []
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def damaged(
    save_episodes: SaveEpisodes, build_here: BuildHere, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Dataset, dict[str, bytes]]:
    """A dataset to damage, and its files as they should be."""
    folder = tmp_path_factory.mktemp("damaged")
    inputs = save_episodes(folder / "in", [noise((n, 2), "float32") for n in (40, 7, 23, 64)])
    dataset = build_here(inputs, folder / "out", window_length=6, shift=4, tail="pad", num_shards=2)
    return dataset, {file.name: file.read_bytes() for file in dataset.folder.iterdir()}


def is_found(dataset: Dataset, name: str, data: bytes, changed: bytes) -> bool:
    """Whether a file with other bytes makes faults; a manifest that says the same in other bytes has none."""
    file = dataset.folder / name
    file.write_bytes(changed)
    try:
        same = load_manifest(dataset.folder) == dataset.manifest and name == "manifest.json"
        return same or verify(dataset.folder) != []
    except DatasetError:
        return True
    finally:
        file.write_bytes(data)


def is_rounding(name: str, data: bytes, changed: bytes) -> bool:
    """Whether what is changed is a digit of a mean or a standard deviation, which are known to ten places only."""
    line = next((a for a, b in zip(data.split(b"\n"), changed.split(b"\n"), strict=False) if a != b), b"")
    return (
        name == "manifest.json" and b"." in line and b":" not in line.replace(b'"mean":', b"").replace(b'"std":', b"")
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_byte_that_is_changed_is_found(damaged: tuple[Dataset, dict[str, bytes]], data: st.DataObject) -> None:
    dataset, files = damaged
    name = data.draw(st.sampled_from(sorted(files)))
    place = data.draw(st.integers(0, len(files[name]) - 1))
    changed = bytearray(files[name])
    changed[place] ^= data.draw(st.integers(1, 255))
    assert is_found(dataset, name, files[name], bytes(changed)) or is_rounding(name, files[name], bytes(changed))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_cut_is_found(damaged: tuple[Dataset, dict[str, bytes]], data: st.DataObject) -> None:
    dataset, files = damaged
    name = data.draw(st.sampled_from(sorted(files)))
    kept = data.draw(st.integers(0, len(files[name]) - 1))
    assert is_found(dataset, name, files[name], files[name][:kept])
