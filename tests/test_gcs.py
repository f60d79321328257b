"""The whole way over gs://, against an emulator: build, resume, verify, info, random access and the stream."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from conftest import SaveEpisodes
from object_stores import Gcs
from pipeline import BuildOptions, plan
from pipeline.files import exists
from pipeline.inputs import find_episodes
from shards import ShardError, open_dataset
from shards.verify import verify

ROOT = Path(__file__).parent.parent
OPTIONS = [
    "--window_length",
    "64",
    "--shift",
    "32",
    "--num_shards",
    "train=3,test=1",
    "--splits",
    "train=0.75,test=0.25",
]
STEPS = [20_000, 15_000, 9_000, 30_001]


def run(gcs: Gcs, *command: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *command], env=environment(gcs) | more, capture_output=True, text=True, timeout=200
    )


def environment(gcs: Gcs) -> dict[str, str]:
    return {**os.environ, **gcs.client, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


def requests_of(requests: list[str], pattern: str) -> list[str]:
    return [request for request in requests if re.search(pattern, request)]


@pytest.fixture(scope="module")
def episodes(gcs: Gcs, tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes) -> Path:
    """Episodes in a local folder, and the same at gs://bucket/in."""
    arrays = [np.random.default_rng(i).standard_normal((steps, 2)).astype(np.float32) for i, steps in enumerate(STEPS)]
    folder = Path(save_episodes(tmp_path_factory.mktemp("gcs") / "in", arrays))
    for file in folder.iterdir():
        gcs.put(f"in/{file.name}", file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def local(episodes: Path) -> Path:
    """The dataset built from local episodes, in a local folder."""
    output = episodes.parent / "out"
    command = ["pipeline", "build", "--input", str(episodes), "--output", str(output), *OPTIONS]
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, timeout=200, cwd=ROOT)
    return output


@pytest.fixture(scope="module")
def built(gcs: Gcs, episodes: Path) -> list[str]:
    """The requests of the build from gs://bucket/in to gs://bucket/out."""
    before = len(gcs.requests())
    done = run(gcs, "pipeline", "build", "--input", "gs://bucket/in", "--output", "gs://bucket/out", *OPTIONS)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert "load('gs://bucket/out', split='train', batch_size=256, cache_dir=\"cache\")" in done.stdout
    return gcs.requests()[before:]


@pytest.fixture
def client(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> Gcs:
    """The emulator, as this process's store."""
    for key, value in gcs.client.items():
        monkeypatch.setenv(key, value)
    return gcs


def test_the_bytes_are_those_of_a_local_build(gcs: Gcs, built: list[str], local: Path) -> None:
    assert gcs.objects("out/") == {file.name: file.read_bytes() for file in local.iterdir()}


def test_requests_of_a_build_are_bounded(built: list[str], episodes: Path, local: Path) -> None:
    manifest = open_dataset(local).manifest
    splits, num_shards = {"train": "0.75", "test": "0.25"}, {"train": 3, "test": 1}
    options = BuildOptions((str(episodes),), str(local), 64, 32, splits=splits, num_shards=num_shards)
    spans = sum(len(task.spans) for task in plan(options).tasks())
    shards = sum(len(split.shards) for split in manifest.splits)
    reads = requests_of(built, r"^GET /download/.*/in/")
    assert len(requests_of(reads, " bytes=0-16384$")) <= len(STEPS) * (1 + shards)  # a header: planned, and checked
    others = (each for each in reads if not each.endswith("=0-16384"))
    source = [tuple(map(int, each.rpartition("=")[2].split("-"))) for each in others]
    assert len(source) <= spans  # each read in one go
    assert min(end - begin for begin, end in source) > 2**13
    for split in manifest.splits:
        for shard in split.shards:
            about = requests_of(built, re.escape(shard.file) + r"(?!.*note)")
            assert len(requests_of(about, "^PUT")) == 1 + shard.bytes // 2**24
            assert len(requests_of(built, re.escape(shard.file + ".note.json"))) <= 6
    # Moved a hundred at a time: shards, the rest, and the manifest, each copied and deleted.
    assert 4 <= len(requests_of(built, "^POST /batch/")) <= 8


def test_info_and_verify_read_from_gs(client: Gcs, built: list[str], local: Path) -> None:
    told = run(client, "shards", "info", "gs://bucket/out")
    assert (told.returncode, told.stdout) == (0, run(client, "shards", "info", str(local)).stdout)
    before = len(client.requests())
    told = run(client, "shards", "verify", "gs://bucket/out", "--source", "gs://bucket/in")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "gs://bucket/out is whole: 2,307 windows in 4 shards" in told.stdout
    seen = client.requests()[before:]
    for split in open_dataset(local).manifest.splits:
        for shard in split.shards:
            assert len(requests_of(seen, re.escape(shard.file) + ".* bytes=")) == 2  # itself, and beside the source


def test_verify_finds_what_is_wrong_at_gs(client: Gcs, built: list[str]) -> None:
    name = "out/out-train.tfrecord-00001-of-00003"
    whole = client.get(name)
    damaged = bytearray(whole)
    damaged[1000] ^= 1
    try:
        client.put(name, bytes(damaged))
        client.put("out/out-train.tfrecord-00007-of-00009", b"x")
        faults = verify("gs://bucket/out")
    finally:
        client.put(name, whole)
        client.delete("out/out-train.tfrecord-00007-of-00009")
    assert [fault.split(" ")[0] for fault in faults[:2]] == [
        "out-train.tfrecord-00007-of-00009",
        "out-train.tfrecord-00001-of-00003",
    ]
    assert "passes for a shard" in faults[0]
    assert verify("gs://bucket/out") == []


def test_random_access_reads_ranges_from_gs(client: Gcs, built: list[str], local: Path) -> None:
    here, there = open_dataset(local)["train"], open_dataset("gs://bucket/out")["train"]
    before = len(client.requests())
    assert there[7]["window"].tobytes() == here[7]["window"].tobytes()
    (request,) = client.requests()[before:]
    begin, end = map(int, request.rpartition("=")[2].split("-"))
    assert end - begin < 1000
    chosen = np.random.default_rng(0).permutation(len(here))[:200]
    for name, values in there[chosen].items():
        np.testing.assert_array_equal(values, here[chosen][name])
    before = len(client.requests())
    np.testing.assert_array_equal(there[:]["window"], here[:]["window"])
    assert len(client.requests()) - before <= 2 * 3  # windows, and where they are from, of each shard
    assert there.locate(3) == here.locate(3)


def test_a_whole_bucket_is_an_input(client: Gcs, built: list[str]) -> None:
    for place in ("gs://bucket", "gs://bucket/"):
        assert not exists(place)
        assert len([file for file in find_episodes([place]) if file.path.startswith("in/")]) == len(STEPS)


def test_a_shard_that_is_replaced_or_gone_at_gs_is_told(
    client: Gcs, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "out/out-test.tfrecord-00000-of-00001"
    whole, windows = client.get(name), open_dataset("gs://bucket/out")["test"]
    try:
        client.put(name, whole)  # the same bytes, and another object
        windows[0]  # is looked for once a minute
        monkeypatch.setattr("shards.remote_shard._SECONDS_BETWEEN_LOOKS", 0.0)
        with pytest.raises(ShardError, match=r"gs://bucket/out/out-test\.tfrecord\S+ has changed since"):
            windows[0]
        client.put(name, whole[:-1])
        with pytest.raises(ShardError, match=r"out-test\.tfrecord-00000-of-00001 has \d+ bytes where the manifest"):
            open_dataset("gs://bucket/out")["test"]
        client.delete(name)
        with pytest.raises(ShardError, match="cannot be read: No such file or directory"):
            open_dataset("gs://bucket/out")["test"]
    finally:
        client.put(name, whole)


STREAM = """
import json, sys
import numpy as np
from reader import load
def digest(dataset):
    return [hash(np.asarray(part).tobytes()) for batch in dataset for part in batch.values()]
same = {}
for name, options in {
    "shuffled": {"seed": 3, "epochs": 2}, "in order": {"shuffle": False}, "from step 5": {"start_step": 5},
    "resident": {"resident": True}, "provenance": {"provenance": True},
}.items():
    here, there = (digest(load(place, batch_size=100, **options)) for place in sys.argv[1:])
    same[name] = [len(here), here == there]
print(json.dumps(same))
"""


def test_the_stream_from_gs_is_that_from_a_local_copy(gcs: Gcs, built: list[str], local: Path) -> None:
    before = len(gcs.requests())
    command = [sys.executable, "-c", STREAM, str(local), "gs://bucket/out"]
    told = subprocess.run(
        command, env={**os.environ, **gcs.tensorflow, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    same = json.loads(told.stdout.splitlines()[-1])
    assert same == {
        "shuffled": [34, True],
        "in order": [17, True],
        "from step 5": [12, True],
        "resident": [17, True],
        "provenance": [51, True],
    }
    requests = gcs.requests()[before:]
    assert not requests_of(requests, "^GET /download/")  # TensorFlow's own client asks so
    manifest = open_dataset(local).manifest
    for shard in manifest.split("train").shards:
        about = requests_of(requests, re.escape(shard.file))
        pieces = -(-shard.bytes // 2**22)
        reads = requests_of(about, " bytes=")
        # Each of five streams reads a piece once (the sorted one also where windows are from), and stats a shard.
        assert len(reads) <= 7 * pieces
        assert len(about) - len(reads) <= 5
        sizes = [int(end) - int(begin) + 1 for begin, end in (r.rpartition("=")[2].split("-") for r in reads)]
        assert set(sizes) == {5 * 2**20}
    assert len(requests_of(requests, "manifest.json")) <= 2 * 5


CACHED = """
import sys, numpy as np
from reader import load
for epoch in range(2):
    dataset = load("gs://bucket/out", batch_size=100, seed=1, cache_dir=sys.argv[1])
    for _ in range(2):
        print(sum(float(np.asarray(batch["window"]).sum(dtype=np.float64)) for batch in dataset))
"""


def test_a_cache_reads_each_shard_once(gcs: Gcs, built: list[str], local: Path, tmp_path: Path) -> None:
    before = len(gcs.requests())
    env = {**os.environ, **gcs.tensorflow, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CACHED, str(tmp_path / "cache")]
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert told.returncode == 0, told.stderr
    assert len({round(float(line), 3) for line in told.stdout.split()}) == 1
    requests = gcs.requests()[before:]
    for shard in open_dataset(local).manifest.split("train").shards:
        (copy,) = (tmp_path / "cache").glob(f"*/{shard.file}")
        assert copy.read_bytes() == (local / shard.file).read_bytes()
        assert len(requests_of(requests, re.escape(shard.file) + ".* bytes=")) == -(-shard.bytes // (5 * 2**20))


def test_a_build_that_is_killed_goes_on(gcs: Gcs, episodes: Path, local: Path) -> None:
    arguments = ["pipeline", "build", "--input", "gs://bucket/in", "--output", "gs://bucket/again", "--name", "out"]
    command = [sys.executable, "-m", *arguments, *OPTIONS, "--workers", "1"]
    begun = subprocess.Popen(command, env=environment(gcs), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (notes := [name for name in gcs.names("again/") if name.endswith(".note.json")]):
        assert begun.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    begun.send_signal(signal.SIGKILL)
    begun.wait(60)
    time.sleep(3)  # in which the job's process sees that its parent is gone
    assert "again/manifest.json" not in gcs.names("again/")
    other = run(gcs, *arguments, *OPTIONS, "--seed", "5")
    assert (other.returncode, "seed was 0 and is 5" in other.stderr) == (2, True), other.stderr
    notes = [name for name in gcs.names("again/") if name.endswith(".note.json")]
    before = len(gcs.requests())
    done = run(gcs, *arguments, *OPTIONS)
    assert (done.returncode, "going on with" in done.stderr) == (0, True), done.stderr
    assert gcs.objects("again/") == {file.name: file.read_bytes() for file in local.iterdir()}
    written = Counter(
        match[1]
        for each in gcs.requests()[before:]
        if (match := re.search(r"^PUT .*%2F(out-\w+\.tfrecord[-\w]+)%3A", each))
    )
    kept = {name.rpartition("/")[2].removesuffix(".note.json") for name in notes}
    assert kept
    assert not kept & set(written)
    assert len(kept) + len(written) == 4


def test_plan_reads_headers_alone(gcs: Gcs, episodes: Path) -> None:
    before = len(gcs.requests())
    told = run(gcs, "pipeline", "plan", "--input", "gs://bucket/in", "--output", "gs://bucket/new", *OPTIONS, "--json")
    assert (told.returncode, json.loads(told.stdout)["windows"]) == (0, 2307), told.stderr
    reads = requests_of(gcs.requests()[before:], " bytes=")
    assert [read.rpartition(" ")[2] for read in reads] == ["bytes=0-16384"] * len(STEPS)
    assert not gcs.names("new/")


@pytest.mark.parametrize(
    ("place", "why"),
    [("gs://bucket/nothing", "matches no .npy or .npz file"), ("gs://no-such-bucket/in", "cannot be listed")],
)
def test_an_input_that_is_not_there_is_a_mistake(gcs: Gcs, place: str, why: str) -> None:
    told = run(gcs, "pipeline", "plan", "--input", place, "--output", "gs://bucket/new", *OPTIONS)
    assert (told.returncode, why in told.stderr, "Traceback" in told.stderr) == (2, True, False), told.stderr


def test_no_dataset_at_gs_is_a_mistake(client: Gcs) -> None:
    told = run(client, "shards", "info", "gs://bucket/nowhere")
    assert (told.returncode, "no dataset at 'gs://bucket/nowhere'" in told.stderr) == (2, True), told.stderr
