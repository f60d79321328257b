"""s3://, against a server on loopback: datasets there are read by fsspec, and built by Beam's own file system."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from object_stores import S3
from shards import Dataset, OptionError, open_dataset

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dataset(
    s3: S3, tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere
) -> Dataset:
    """A dataset in a local folder, its episodes at s3://bucket/in, and itself at s3://bucket/copied."""
    folder = tmp_path_factory.mktemp("s3")
    arrays = [np.random.default_rng(i).standard_normal((3000, 4)).astype(np.float32) for i in range(3)]
    inputs = save_episodes(folder / "in", arrays)
    built = build_here(inputs, folder / "out", window_length=32, shift=16, num_shards=2)
    for prefix, source in (("in", Path(inputs)), ("copied", folder / "out")):
        for file in source.iterdir():
            s3.put(f"{prefix}/{file.name}", file.read_bytes())
    return built


def run(s3: S3, *command: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **s3.client, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=200)


READ = """
import sys
from reader import load
from shards import open_dataset
windows, there = (open_dataset(place)["train"] for place in sys.argv[1:3])
chosen = [5, 60, 61, 400, 2]
assert windows[chosen]["window"].tobytes() == there[chosen]["window"].tobytes()
def bytes_of(place, **options):
    return [batch["window"].numpy().tobytes() for batch in load(place, batch_size=64, seed=1, **options)]
plain = bytes_of(sys.argv[1])
assert len(plain) == 9
assert plain == bytes_of(sys.argv[2]) == bytes_of(sys.argv[2], cache_dir=sys.argv[3])
print("same")
"""


def test_a_dataset_at_s3_is_read_streamed_and_cached(s3: S3, dataset: Dataset, tmp_path: Path) -> None:
    told = run(s3, "-c", READ, str(dataset.folder), "s3://bucket/copied", str(tmp_path))
    assert (told.returncode, told.stdout.splitlines()[-1:]) == (0, ["same"]), told.stderr
    copies = {file.name: file.read_bytes() for file in tmp_path.glob("*/*.tfrecord*")}
    assert copies == {file.name: file.read_bytes() for file in Path(dataset.folder).glob("*.tfrecord*")}


def test_a_dataset_at_s3_is_verified(s3: S3, dataset: Dataset) -> None:
    told = run(s3, "-m", "shards", "verify", "s3://bucket/copied", "--source", "s3://bucket/in")
    assert (told.returncode, "s3://bucket/copied is whole: 558 windows" in told.stdout) == (0, True), told.stderr


def test_a_dataset_is_built_from_s3_to_s3(s3: S3, dataset: Dataset) -> None:
    arguments = [
        "--input",
        "s3://bucket/in",
        "--output",
        "s3://bucket/run[1]/out",
        "--window_length",
        "32",
        "--shift",
        "16",
    ]
    told = run(s3, "-m", "pipeline", "build", *arguments, "--num_shards", "2", "--workers", "1")
    assert told.returncode == 0, told.stderr
    told = run(s3, "-m", "shards", "verify", "s3://bucket/run[1]/out", "--source", "s3://bucket/in")
    assert told.returncode == 0, told.stdout + told.stderr
    told = run(s3, "-m", "shards", "info", "s3://bucket/run[1]/out")
    assert told.stdout == run(s3, "-m", "shards", "info", str(dataset.folder)).stdout


def test_a_kind_of_url_that_nobody_opens_is_a_mistake() -> None:
    with pytest.raises(OptionError, match=r"unheard://of/manifest\.json cannot be read: Protocol not known: unheard"):
        open_dataset("unheard://of")
