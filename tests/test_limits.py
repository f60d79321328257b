"""The largest, the smallest and the oddest that a build is asked for, as real commands."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shards import Dataset, open_dataset
from shards.verify import verify


def build(source: Path, output: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pipeline", "build", "--input", source, "--output", output, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert "Traceback" not in done.stderr
    return done


def built(source: Path, output: Path, *flags: str) -> Dataset:
    """The dataset that a build gave, in which nothing is wrong."""
    done = build(source, output, *flags)
    assert done.returncode == 0, done.stderr
    assert verify(output) == []
    return open_dataset(output)


def refused(source: Path, output: Path, *flags: str) -> str:
    """What a build said that was refused before anything was written."""
    done = build(source, output, *flags)
    assert done.returncode == 2
    assert not output.exists()
    return done.stderr


def save(folder: Path, *lengths: int) -> Path:
    folder.mkdir()
    for i, steps in enumerate(lengths):
        np.save(folder / f"{i}.npy", np.full(steps, i, np.int32))
    return folder


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_small_episodes(tmp_path: Path, count: int) -> None:
    source = save(tmp_path / "in", *(8 + i % 9 for i in range(count)))

    dataset = built(source, tmp_path / "out", "--window_length", "8", "--num_shards", "4")

    assert dataset.manifest.source.episodes == count
    windows = sum((8 + i % 9) // 8 for i in range(count))
    assert dataset.manifest.windows == windows
    where = dataset["train"].provenance()
    values = dataset["train"][:]["window"]
    assert (values == where["episode"][:, np.newaxis]).all() or _by_path(dataset, where["episode"], values)
    assert len(set(where["episode"].tolist())) == count


def _by_path(dataset: Dataset, episodes: np.ndarray, values: np.ndarray) -> bool:
    names = np.array([int(path.removesuffix(".npy")) for path in dataset.episode_paths])
    return bool((values == names[episodes][:, np.newaxis]).all())


def test_one_episode_of_eight_billion_steps(tmp_path: Path) -> None:
    steps, length, shift = 2**33, 2**12, 2**25
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/huge.npy").open("wb") as file:  # zeros that take no room, but for the last window
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({steps},)}}".encode()
        file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
        file.seek(128 + steps - shift)
        file.write(bytes([7]) * length)
        file.truncate(128 + steps)

    dataset = built(
        tmp_path / "in", tmp_path / "out", "--window_length", str(length), "--shift", str(shift), "--num_shards", "3"
    )

    windows = dataset["train"]
    starts = windows.provenance()["start"]
    assert sorted(starts.tolist()) == list(range(0, steps, shift))
    last = int(np.argmax(starts))
    assert (windows[last]["window"] == 7).all()
    assert windows[:]["window"].sum() == 7 * length


def test_windows_longer_than_every_episode(tmp_path: Path) -> None:
    error = refused(save(tmp_path / "in", 10, 20), tmp_path / "out", "--window_length", "21")

    assert error == "python -m pipeline: no episode is as long as one window, 21 steps: the longest has 20\n"


def test_one_window_in_all(tmp_path: Path) -> None:
    windows = built(save(tmp_path / "in", 20, 21, 20), tmp_path / "out", "--window_length", "21")["train"]

    assert len(windows) == 1
    assert windows.locate(0) == ("1.npy", 0)


def test_more_shards_than_windows(tmp_path: Path) -> None:
    error = refused(save(tmp_path / "in", 40), tmp_path / "out", "--window_length", "10", "--num_shards", "5")

    assert error == "python -m pipeline: num_shards asks for 5 shards of split train, which has 4 windows\n"


def test_as_many_shards_as_windows(tmp_path: Path) -> None:
    dataset = built(save(tmp_path / "in", 40), tmp_path / "out", "--window_length", "10", "--num_shards", "4")

    assert [shard.windows for shard in dataset.manifest.splits[0].shards] == [1, 1, 1, 1]


def test_a_shift_larger_than_the_window(tmp_path: Path) -> None:
    dataset = built(save(tmp_path / "in", 100), tmp_path / "out", "--window_length", "10", "--shift", "45")

    assert sorted(dataset["train"].provenance()["start"].tolist()) == [0, 45, 90]
    assert dataset.manifest.source.uncovered == 70


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_shards(tmp_path: Path, count: int) -> None:
    source = save(tmp_path / "in", 4 * count)

    dataset = built(source, tmp_path / "out", "--window_length", "2", "--num_shards", str(count))

    assert len(dataset.manifest.splits[0].shards) == count
    assert sorted(dataset["train"].provenance()["start"].tolist()) == list(range(0, 4 * count, 2))


def test_names_as_long_as_they_can_be(tmp_path: Path) -> None:
    folder, output = tmp_path / ("i" * 255), tmp_path / ("ö" * 127)
    folder.mkdir()
    name = "é" * 125 + ".npy"
    assert len(name.encode()) == 254
    np.save(folder / name, np.arange(8, dtype="i2"))
    np.savez(tmp_path / "one.npz", **{"f" * 100: np.arange(8)})
    flags = ["--window_length", "4", "--splits", "s" * 100 + "=1"]

    assert built(folder, output, *flags)["s" * 100].locate(0)[0] == name
    dataset = built(tmp_path / "one.npz", tmp_path / "out", *flags, "--name", "n" * 100)
    (shard,) = dataset.manifest.splits[0].shards
    assert shard.file == "n" * 100 + "-" + "s" * 100 + ".tfrecord-00000-of-00001"
    assert dataset.manifest.features[0].name == "f" * 100


@pytest.fixture
def fixed_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that not even root can write to."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a disk")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_an_output_that_cannot_be_written_to(tmp_path: Path, fixed_disk: Path) -> None:
    error = refused(save(tmp_path / "in", 40), fixed_disk / "out", "--window_length", "10")

    assert error == f"python -m pipeline: {fixed_disk}/out cannot be written: no permission in {fixed_disk}\n"


def test_an_output_that_is_on_no_disk(tmp_path: Path) -> None:
    done = build(save(tmp_path / "in", 40), Path("/proc/none/out"), "--window_length", "10")

    assert done.returncode in {1, 2}
    assert len(done.stderr.splitlines()) == 1
    assert not os.path.exists("/proc/none")
