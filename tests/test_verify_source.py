"""Windows beside the episode files that they were cut from."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from forgery import patch, rewrite_episodes, rewrite_shard, window
from shards import Dataset, OptionError
from shards.verify import examine, verify

Built = tuple[Dataset, Path]


@pytest.fixture
def built(save_episodes: SaveEpisodes, build_here: BuildHere, tmp_path: Path) -> Built:
    """A dataset of windows [4 i, 4 i + 6) of three episodes, and the folder of these."""
    random = np.random.default_rng(5)
    episodes = {f"day/e{i}": random.standard_normal((n, 2)).astype("float32") for i, n in enumerate((30, 22, 18))}
    inputs = save_episodes(tmp_path / "in", episodes)
    return build_here(inputs, tmp_path / "out", window_length=6, shift=4, num_shards=2), tmp_path / "in"


def test_a_value_that_is_other_in_the_source_is_found_in_every_window_that_has_it(built: Built) -> None:
    dataset, source = built
    assert verify(dataset.folder, source) == []
    values = np.load(source / "day/e1.npy")
    values[9, 1] = np.nextafter(values[9, 1], 100)
    np.save(source / "day/e1.npy", values)
    faults = verify(dataset.folder, source)
    assert sorted(fault.partition(" in record ")[2].partition(", ")[2] for fault in faults) == [
        "the window of day/e1.npy from step 4 on",
        "the window of day/e1.npy from step 8 on",
    ]
    assert all(
        fault.split(" in record ")[0].endswith(" has other values of window than the source") for fault in faults
    )


def test_a_forged_record_with_right_checksums_is_found(built: Built) -> None:
    dataset, source = built
    where = window(dataset, dataset["train"].split.shards[0].file, 2)
    field = dataset.manifest.layout.field("window")
    file = rewrite_shard(dataset, lambda records: field.values(records)[2].fill(7))
    assert f"{file} has other values of window than the source in record 2, {where}" in verify(dataset.folder, source)


Break = Callable[[Path], object]


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (Path.unlink, "day/e1.npy cannot be read: No such file or directory"),
        (
            lambda file: file.write_bytes(b""),
            "day/e1.npy cannot be read as NumPy saves arrays: EOF: reading magic string,",
        ),
        (lambda file: os.truncate(file, 200), "day/e1.npy has 200 bytes, where its header promises 304"),
        (
            lambda file: np.save(file, np.zeros((23, 2), "float32")),
            "day/e1.npy has window of shape (23, 2), where the dataset was made from (22, 2)",
        ),
        (
            lambda file: np.save(file, np.zeros((22, 3), "float32")),
            "day/e1.npy has window of shape (22, 3), where the dataset was made from (22, 2)",
        ),
        (
            lambda file: np.save(file, np.zeros((22, 2), "O"), allow_pickle=True),
            "day/e1.npy holds Python objects, which are never unpickled",
        ),
        (lambda file: np.save(file, np.zeros((22, 2), "U3")), "day/e1.npy has window of dtype <U3"),
        (lambda file: np.save(file, np.zeros((22, 2), "complex64")), "day/e1.npy has window of dtype complex64"),
        (lambda file: np.save(file, np.zeros(22, [("a", "f4")])), "day/e1.npy lacks window"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "day/e1.npy cannot be read: it is no regular file"),
    ],
    ids=["missing", "empty", "cut", "longer", "wider", "objects", "text", "complex", "fields", "pipe"],
)
def test_a_file_that_is_not_the_one_that_was_cut_is_named_once(built: Built, broken: Break, fault: str) -> None:
    dataset, source = built
    broken(source / "day/e1.npy")
    (found,) = verify(dataset.folder, source)
    assert found.startswith(fault)


def test_a_header_that_claims_more_than_memory_is_believed_by_nobody(built: Built) -> None:
    dataset, source = built
    with (source / "day/e1.npy").open("wb") as opened:
        header = {"descr": "<f4", "fortran_order": True, "shape": (2**42, 2)}
        np.lib.format.write_array_header_1_0(opened, header)
    rewrite_episodes(dataset, lambda rows: [rows[0], rows[1]._replace(steps=2**42 - 1), rows[2]])
    faults = verify(dataset.folder, source)
    assert f"day/e1.npy has 128 bytes, where its header promises {128 + 2**45}" in faults


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "day/../../x.npy", "day//e1.npy", "", "./x.npy"])
def test_no_path_leads_out_of_the_source(built: Built, path: str) -> None:
    dataset, source = built
    rewrite_episodes(dataset, lambda rows: [rows[0], rows[1]._replace(path=path), rows[2]])
    faults = verify(dataset.folder, source)
    if path.startswith("/") or ".." in path:
        why = f"near line 3: the path {path!r} leads out of the episodes' folder"
        assert faults == [f"{dataset.folder}/episodes.csv is damaged, {why}; copy the dataset again"]
    else:
        assert f"{path} is no path below the source's folder, and is not opened" in faults


def test_of_many_files_that_are_missing_some_are_named(
    save_episodes: SaveEpisodes, build_here: BuildHere, tmp_path: Path
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.zeros(9, "float32")] * 14)
    dataset = build_here(inputs, tmp_path / "out", window_length=3, shift=3, num_shards=3)
    faults = verify(dataset.folder, tmp_path)
    assert faults == [f"e{i:03d}.npy cannot be read: No such file or directory" for i in range(10)] + [
        "4 more source files cannot be compared"
    ]


def test_a_source_that_is_no_folder_is_a_mistake(built: Built) -> None:
    with pytest.raises(OptionError, match=r"no source at .*: give the folder that the paths in episodes.csv are below"):
        verify(built[0].folder, built[1] / "nothing")


def npz(file: Path, **arrays: np.ndarray) -> None:
    file.parent.mkdir(exist_ok=True)
    np.savez_compressed(file, **arrays)


@pytest.fixture
def archives(build_here: BuildHere, tmp_path: Path) -> Built:
    """Episodes with values of their own, and a label that no episode file has."""
    for i in range(3):
        gain, level = np.asarray(i / 3, ml_dtypes.bfloat16), np.asarray(2**62 + i)
        npz(tmp_path / "in" / f"{i}.npz", x=np.arange(20.0) + i, y=np.zeros((20, 2), ">i2"), gain=gain, level=level)
    (tmp_path / "labels.csv").write_text("path,task\n" + "".join(f"{i}.npz,pick\n" for i in range(3)))
    dataset = build_here(
        str(tmp_path / "in"),
        tmp_path / "out",
        window_length=5,
        shift=5,
        labels=str(tmp_path / "labels.csv"),
        dtype={"x": "float32"},
        num_shards=1,
    )
    return dataset, tmp_path / "in"


def test_labels_are_told_not_to_be_compared(archives: Built) -> None:
    findings = examine(archives[0].folder, archives[1])
    assert (findings.faults, findings.notes) == ((), ("not compared, since no source file has it: task",))


def test_values_of_an_episode_are_compared_bit_for_bit(archives: Built) -> None:
    dataset, source = archives
    arrays = dict(np.load(source / "1.npz"))
    npz(source / "1.npz", **arrays | {"gain": np.asarray(0.5), "level": arrays["level"] - 2})
    faults = verify(dataset.folder, source)
    file = dataset["train"].split.shards[0].file
    split = dataset["train"].provenance()
    rows = np.flatnonzero(split["episode"] == 1).tolist()
    assert sorted(faults) == sorted(
        f"{file} has other values of {name} than the source in record {row}, the window of 1.npz from step"
        f" {split['start'][row]} on"
        for name in ("gain", "level")
        for row in rows
    )


def test_an_array_that_some_files_lack_is_found(archives: Built) -> None:
    dataset, source = archives
    arrays = dict(np.load(source / "2.npz"))
    del arrays["level"]
    npz(source / "2.npz", **arrays)
    assert verify(dataset.folder, source) == ["2.npz lacks level, which other files have"]


def test_an_archive_that_is_a_bomb_is_not_inflated(archives: Built) -> None:
    dataset, source = archives
    arrays = dict(np.load(source / "1.npz"))
    npz(source / "1.npz", **arrays | {"x": np.zeros(2**22)})
    dataset_made = "where the dataset was made from (20,)"
    assert verify(dataset.folder, source) == [f"1.npz has x of shape (4194304,), {dataset_made}"]

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (20,)})
    del arrays["x"]
    npz(source / "1.npz", **arrays)
    with zipfile.ZipFile(source / "1.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(2**20))
    assert verify(dataset.folder, source) == ["1.npz has x in 1048704 bytes, where its header promises 288"]


def test_an_archive_that_is_damaged_is_found(archives: Built) -> None:
    dataset, source = archives
    file = source / "1.npz"
    whole = file.read_bytes()
    patch(file, 80, b"\xff\xff\xff\xff\xff\xff")  # in the first array's compressed bytes
    (fault,) = verify(dataset.folder, source)
    assert fault.startswith("1.npz cannot be read as NumPy saves arrays: ")
    file.write_bytes(whole[:-10])
    assert verify(dataset.folder, source) == ["1.npz cannot be read as NumPy saves arrays: File is not a zip file"]


def test_a_range_is_read_and_not_the_file(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of a sparse file of a TB: only its steps are read."""
    dataset, source = built
    data = (source / "day/e1.npy").read_bytes()
    with (source / "day/e1.npy").open("wb") as opened:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**37, 2)}
        np.lib.format.write_array_header_1_0(opened, header)
        opened.write(data[128:])
        opened.truncate(128 + 2**40)
    rewrite_episodes(dataset, lambda rows: [rows[0], rows[1]._replace(steps=2**37), rows[2]])
    assert [fault for fault in verify(dataset.folder, source) if "e1" in fault] == []
