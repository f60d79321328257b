"""The job on several of Beam's worker pools, each a process with processes of its own, over gRPC."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from shutil import copytree, ignore_patterns

import grpc
import numpy as np
import pytest

from conftest import BuildHere
from pipeline.worker_pools import describe_grpc_error, pools_of

Process = subprocess.Popen[str]
ROOT = str(Path(__file__).parent.parent)
OPTIONS = {"window_length": 64, "splits": {"train": "0.75", "test": "0.25"}, "num_shards": 8, "name": "waves"}
FLAGS = ["--window_length", "64", "--splits", "train=0.75,test=0.25", "--num_shards", "8", "--name", "waves"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of which a build takes seconds: each of many shards decompresses them anew."""
    folder = tmp_path_factory.mktemp("long")
    for i in range(4):
        np.savez_compressed(folder / f"{i}.npz", x=np.random.default_rng(i).integers(0, 4, 500_000, np.uint8))
    return folder


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[dict[str, int]]:
    with running_pools(tmp_path, ROOT, 2) as started:
        yield started


@contextmanager
def running_pools(folder: Path, project: str, number: int) -> Iterator[dict[str, int]]:
    """{address: process} of so many pools, with the project as it is in that folder."""
    # The pools start their workers as `python`, and leave them to themselves when they are killed: each is a group.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    started: dict[str, Process] = {}
    try:
        for _ in range(number):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            started[f"localhost:{port}"] = subprocess.Popen(
                [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"],
                env=os.environ | {"PYTHONPATH": project, "PATH": path},
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        yield {address: process.pid for address, process in started.items()}
    finally:
        for process in started.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start(inputs: Path, output: Path, pools: dict[str, int], *more: str) -> Process:
    always = ["--input", str(inputs), "--output", str(output), "--environment_type=EXTERNAL"]
    command = [sys.executable, "-m", "pipeline", "build", *always, f"--environment_config={','.join(pools)}"]
    environment = os.environ | {"PYTHONPATH": ROOT}
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *FLAGS, *more], env=environment, **told)


def digests(folder: Path) -> dict[str, str]:
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if f"\nPPid:\t{parent}\n" in status.read_text():
                found.append(int(status.parent.name))
    return found


def test_several_pools_build_the_same_bytes(
    inputs: Path, pools: dict[str, int], tmp_path: Path, build_here: BuildHere
) -> None:
    build_here(str(inputs), tmp_path / "here", **OPTIONS)
    process, workers = start(inputs, tmp_path / "out", pools, "--workers", "3"), 0
    try:
        while process.poll() is None:
            workers = max(workers, *(0 if not (at := children(pool)) else len(at) for pool in pools.values()))
            time.sleep(0.1)
        _, errors = process.communicate(timeout=120)
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0, errors
    assert digests(tmp_path / "out") == digests(tmp_path / "here")
    # 3 workers, in turn: none of them where the command runs.
    assert workers == 2
    assert all(children(pool) for pool in pools.values()), "each pool started a worker"


def test_a_worker_that_is_killed_ends_the_build_and_the_next_goes_on(
    inputs: Path, pools: dict[str, int], tmp_path: Path, build_here: BuildHere
) -> None:
    build_here(str(inputs), tmp_path / "here", **OPTIONS)
    output = tmp_path / "out"
    process = start(inputs, output, pools)
    try:
        deadline = time.monotonic() + 90
        while not list(output.glob("incomplete.tmp/*/*.note.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(children(next(iter(pools.values())))[0], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 1
    assert errors.splitlines()[-2:] == [
        "python -m pipeline: a worker of a pool was lost or killed, perhaps for want of memory",
        "The same command goes on with what is finished; with --verbose it shows Beam's log.",
    ]
    process = start(inputs, output, pools)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert digests(output) == digests(tmp_path / "here")


@pytest.mark.parametrize("where", ["pipeline", "shards"])
def test_workers_with_another_version_are_told(inputs: Path, tmp_path: Path, where: str) -> None:
    other = tmp_path / "other"
    for package in ("pipeline", "shards"):
        copytree(Path(ROOT, package), other / package, ignore=ignore_patterns("__pycache__"))
    with (other / where / "windows_of_another_time.py").open("w") as added:
        added.write("")

    with running_pools(tmp_path, str(other), 1) as pools:
        process = start(inputs, tmp_path / "out", pools)
        _, errors = process.communicate(timeout=120)

    assert process.returncode == 1
    assert errors.splitlines()[-2] == (
        f"python -m pipeline: a worker has another version of episode-windows, at {other}, than the machine that"
        " launched the job: install the same on all machines"
    )
    assert not list((tmp_path / "out").glob("*.tfrecord*"))


def test_the_addresses_of_the_pools() -> None:
    assert pools_of([]) == []
    assert pools_of(["--environment_config=a:1"]) == []
    assert pools_of(["--environment_type=DOCKER", "--environment_config=image"]) == []
    assert pools_of(["--environment_type", "external", "--environment_config", "a:1"]) == ["a:1"]
    assert pools_of(["--environment_type=EXTERNAL", "--environment_config=a:1,b:2,"]) == ["a:1", "b:2"]


def test_errors_of_pools_in_words() -> None:
    assert describe_grpc_error(ValueError("no")) is None
    assert describe_grpc_error(RuntimeError("Channel closed prematurely.")) is not None
    assert describe_grpc_error(grpc.FutureTimeoutError()) == "no job server answers: check --job_endpoint"
