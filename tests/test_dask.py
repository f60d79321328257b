"""The job on a Dask cluster of real processes: the same command, the same bytes, also when a worker is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from conftest import BuildHere
from pipeline.check_flags import check_beam_args
from pipeline.dask_runner import dask_flags, describe_dask_error, runs_on_dask
from shards import OptionError

Done = subprocess.CompletedProcess[str]
RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"
ROOT = str(Path(__file__).parent.parent)


class Cluster(NamedTuple):
    """A scheduler and its workers, each a process."""

    scheduler: "subprocess.Popen[bytes]"
    workers: "list[subprocess.Popen[bytes]]"
    address: str
    file: Path

    @property
    def flags(self) -> list[str]:
        return ["--runner=DaskRunner", f"--dask_client_address={self.address}"]


@contextmanager
def running_cluster(folder: Path, workers: int, threads: int) -> Iterator[Cluster]:
    file, dask = folder / "scheduler.json", [sys.executable, "-m", "dask"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = os.environ | {"PYTHONPATH": ROOT}
    here = ["--host", "127.0.0.1", "--scheduler-file", str(file), "--no-dashboard"]
    begin = [*dask, "scheduler", *here, "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    work = [*dask, "worker", *here, "--no-nanny", "--memory-limit", "0", "--nthreads", str(threads)]
    started = []
    try:
        for each in (begin, *workers * [[*work, "--local-directory", str(folder / "scratch")]]):
            started.append(subprocess.Popen(each, cwd=folder, env=environment, **quiet))  # noqa: PERF401
        deadline = time.monotonic() + 60
        while not file.exists():  # it is renamed into its place
            assert time.monotonic() < deadline
            assert started[0].poll() is None
            time.sleep(0.05)
        yield Cluster(started[0], started[1:], json.loads(file.read_text())["address"], file)
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=2, threads=2) as running:
        yield running


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("in"), np.random.default_rng(5)
    (folder / "plain").mkdir()
    (folder / "several").mkdir()
    for i, steps in enumerate((400, 30, 666, 128, 180, 242)):
        np.save(folder / f"plain/e{i}.npy", random.standard_normal((steps, 3)).astype(np.float32))
        pictures = random.integers(0, 255, (steps, 4, 4), np.uint8)
        np.savez_compressed(folder / f"several/e{i}.npz", pictures=pictures, speed=random.random(steps), id=np.int64(i))
    return folder


@pytest.fixture(scope="module")
def long_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of which a build takes seconds: each of many shards decompresses them anew."""
    folder = tmp_path_factory.mktemp("long")
    for i in range(4):
        np.savez_compressed(folder / f"{i}.npz", x=np.random.default_rng(i).integers(0, 4, 500_000, np.uint8))
    return folder


def command(inputs: Path, output: Path, *flags: str) -> list[str]:
    always = ["--input", str(inputs), "--output", str(output), "--name", "waves", "--seed", "3"]
    return [sys.executable, "-m", "pipeline", "build", *always, *flags]


def build(inputs: Path, output: Path, *flags: str) -> Done:
    environment = os.environ | {"PYTHONPATH": ROOT}
    return subprocess.run(command(inputs, output, *flags), capture_output=True, text=True, timeout=120, env=environment)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def complaint(done: Done) -> str:
    return done.stderr[done.stderr.index("python -m pipeline: ") :]


WAVES = {"name": "waves", "seed": 3}
SHAPES = {
    "one shard": ("plain", {"window_length": 16, "shift": 5, "splits": {"train": "1"}, "num_shards": 1}, []),
    "splits": (
        "plain",
        {"window_length": 16, "splits": {"train": "0.7", "test": "0.3"}, "num_shards": {"train": 9, "test": 2}},
        ["--splits", "train=0.7,test=0.3", "--num_shards", "train=9,test=2"],
    ),
    "per record": (
        "plain",
        {"window_length": 16, "shift": 1, "splits": {"train": "1"}, "num_shards": 6, "windows_per_record": 8},
        ["--windows_per_record", "8", "--dask_npartitions=4"],
    ),
    "npz": (
        "several",
        {"window_length": 16, "splits": {"train": "1"}, "num_shards": 7, "stride": 2, "tail": "pad"},
        ["--stride", "2", "--tail", "pad", "--dask_partition_size=2"],
    ),
}


def shape_flags(shape: str) -> list[str]:
    _, options, more = SHAPES[shape]
    defaults = {"shift": options.get("shift", 16), "num_shards": options["num_shards"], "splits": "train=1"}
    plain = [f"--{name}={value}" for name, value in defaults.items() if f"--{name}" not in more]
    return ["--window_length", "16", *plain, *more]


@pytest.mark.parametrize("shape", ["splits", "per record", "npz"])
def test_a_dask_cluster_builds_the_same_bytes_every_time(
    shape: str, inputs: Path, tmp_path: Path, cluster: Cluster, build_here: BuildHere
) -> None:
    folder, options, _ = SHAPES[shape]
    build_here(str(inputs / folder), tmp_path / "here", **options, **WAVES)
    for again in range(2 if shape == "per record" else 1):
        done = build(inputs / folder, tmp_path / f"dask{again}", *shape_flags(shape), *cluster.flags)
        assert done.returncode == 0, done.stderr
        assert digests(tmp_path / f"dask{again}") == digests(tmp_path / "here")


@pytest.mark.slow
def test_a_local_cluster_is_started_where_no_address_is_given(
    inputs: Path, tmp_path: Path, build_here: BuildHere
) -> None:
    folder, options, _ = SHAPES["one shard"]
    build_here(str(inputs / folder), tmp_path / "here", **options, **WAVES)
    report = tmp_path / "report.json"
    flags = [*shape_flags("one shard"), "--runner", RUNNER, "--report", str(report)]
    done = build(inputs / folder, tmp_path / "dask", *flags)
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "dask") == digests(tmp_path / "here")
    assert list(json.loads(report.read_text())["stages"]) == ["survey", "plan"]  # Dask counts nothing


@contextmanager
def begun(inputs: Path, output: Path, cluster: Cluster, finished: int) -> Iterator["subprocess.Popen[str]"]:
    """A build that has finished so many of its 20 shards."""
    flags = ["--window_length", "64", "--splits", "train=1", "--num_shards", "20", *cluster.flags]
    environment = os.environ | {"PYTHONPATH": ROOT}
    process = subprocess.Popen(
        command(inputs, output, *flags), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 90
        while len(list(output.glob("incomplete.tmp/*/*.note.json"))) < finished:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
    finally:
        process.terminate()  # so that it ends its own processes, too
        process.communicate()


@pytest.mark.parametrize(
    "finished", [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(12, marks=pytest.mark.slow)]
)
def test_a_build_outlives_a_worker_that_is_killed(
    finished: int, long_inputs: Path, tmp_path: Path, build_here: BuildHere
) -> None:
    options = {"window_length": 64, "splits": {"train": "1"}, "num_shards": 20}
    build_here(str(long_inputs), tmp_path / "here", **options, **WAVES)
    output = tmp_path / "dask"
    with (
        running_cluster(tmp_path, workers=3, threads=1) as cluster,
        begun(long_inputs, output, cluster, finished) as process,
    ):
        cluster.workers[0].send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert digests(output) == digests(tmp_path / "here")


def test_a_build_ends_when_the_scheduler_is_killed(long_inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "dask"
    with (
        running_cluster(tmp_path, workers=2, threads=1) as cluster,
        begun(long_inputs, output, cluster, 1) as process,
    ):
        cluster.scheduler.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-2:] == [
        "python -m pipeline: the connection to Dask's scheduler was lost",
        "The same command goes on with what is finished; with --verbose it shows Beam's log.",
    ]
    assert not (output / "manifest.json").exists()


def test_what_workers_find_wrong_is_told_as_locally(inputs: Path, tmp_path: Path, cluster: Cluster) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in (inputs / "plain").iterdir():
        array = np.load(file)
        if file.name == "e2.npy":
            array[77, 1] = np.nan
        np.save(folder / file.name, array)
    flags = ["--window_length", "16", "--splits", "train=1", "--num_shards", "3", "--nonfinite", "fail"]

    local = build(folder, tmp_path / "local", *flags)
    done = build(folder, tmp_path / "dask", *flags, *cluster.flags)

    assert (done.returncode, local.returncode) == (1, 1)
    assert complaint(done) == complaint(local).replace(str(tmp_path / "local"), str(tmp_path / "dask"))
    assert "Traceback" not in done.stderr
    assert "e2.npy" in complaint(done)
    assert not (tmp_path / "dask/manifest.json").exists()


def test_a_scheduler_that_does_not_answer_is_told_in_bounded_time(inputs: Path, tmp_path: Path) -> None:
    flags = ["--window_length", "16", "--num_shards", "1", "--runner=DaskRunner", "--dask_connection_timeout=2"]
    done = build(inputs / "plain", tmp_path / "out", *flags, "--dask_client_address=tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert complaint(done).splitlines() == [
        "python -m pipeline: no Dask scheduler answers (timed out trying to connect to tcp://127.0.0.1:1 after 2 s)",
        "The same command goes on with what is finished; with --verbose it shows Beam's log.",
    ]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--dask_client_address=there"], "--dask_client_address there: missing port number in address 'there'"),
        (["--dask_scheduler_file", "/nowhere.json"], "--dask_scheduler_file /nowhere.json: there is no such file"),
        (["--dask_npartitions=many"], "argument --dask_npartitions: invalid int value: 'many'"),
    ],
)
def test_flags_that_cannot_be_are_told_before_anything_is_done(flags: list[str], why: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_beam_args(("--runner=DaskRunner", *flags))
    assert str(raised.value).startswith(why)


def test_a_flag_of_dask_needs_its_runner() -> None:
    with pytest.raises(OptionError, match=r"^--dask_npartitions is a flag of Dask's runner: add --runner=DaskRunner$"):
        check_beam_args(("--dask_npartitions=3",))


def test_what_to_install_where_dask_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask.bag", None)
    with pytest.raises(OptionError, match=r"^DaskRunner needs Dask \(.*\): pip install 'episode-windows\[dask\]'$"):
        check_beam_args(("--runner=DaskRunner",))


def test_a_shard_is_a_task_up_to_128_of_them() -> None:
    runner = f"--runner={RUNNER}"
    assert dask_flags([], 1) == (["--dask_npartitions=1", runner], 1)
    assert dask_flags(["--x"], 128) == (["--dask_npartitions=128", "--x", runner], 128)
    assert dask_flags([], 9000) == (["--dask_npartitions=128", runner], 128)
    assert dask_flags(["--dask_npartitions", "900"], 9000) == (["--dask_npartitions", "900", runner], 900)
    assert dask_flags(["--dask_npartitions=900"], 7) == (["--dask_npartitions=900", runner], 7)
    assert dask_flags(["--dask_partition_size=4"], 9000) == (["--dask_partition_size=4", runner], 9000)


def test_the_runner_has_several_names() -> None:
    for name in ("DaskRunner", "daskrunner", "dask", RUNNER):
        assert runs_on_dask(["--runner", name])
        assert runs_on_dask([f"--runner={name}"])
    assert not runs_on_dask([])
    assert not runs_on_dask(["--runner=FlinkRunner"])
    assert not runs_on_dask(["--runner=DaskRunner", "--runner=FlinkRunner"])


def test_errors_of_dask_in_words() -> None:
    class KilledWorker(Exception):  # noqa: N818
        """As Dask has one."""

    def raised_from(cause: Exception) -> Exception:
        error = RuntimeError("Error during deserialization of the task graph")
        error.__cause__ = cause
        return error

    lacks = "the scheduler or a worker of Dask lacks what the job needs (No module named 'pipeline')"
    assert describe_dask_error(OSError("disk on fire")) is None
    assert describe_dask_error(raised_from(ValueError("x"))) is None
    assert describe_dask_error(FileNotFoundError(2, "No such file", "/in/e0.npy")) is None
    assert describe_dask_error(FileNotFoundError(2, "No such file", "/out/incomplete.tmp/5f/tasks.index.json")) == (
        "a worker does not find /out/incomplete.tmp/5f/tasks.index.json: --output has to be a folder that all machines"
        " share, or a URL"
    )
    assert str(describe_dask_error(raised_from(ModuleNotFoundError("No module named 'pipeline'")))).startswith(lacks)
    assert str(describe_dask_error(KilledWorker())).startswith("a shard could not be written, since the Dask workers")
