"""Builds that die: whatever ends them, and when, leaves no dataset or a whole one, and the next run goes on."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from pipeline import BuildOptions, build, plan
from pipeline.staging import stage_plan
from shards import DatasetNotFoundError, OutputError, load_manifest, open_dataset

Process = subprocess.Popen[str]
Start = Callable[..., Process]

FLAGS = ["--window_length", "64", "--num_shards", "40", "--workers", "2", "--splits", "train=1"]
KEPT = "run the same command again, and it goes on with what is finished"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of which a build takes seconds: each of many shards decompresses them anew."""
    folder = tmp_path_factory.mktemp("long") / "in"
    folder.mkdir()
    for i in range(4):
        np.savez_compressed(folder / f"{i}.npz", x=np.random.default_rng(i).integers(0, 4, 2_000_000, np.uint8))
    return folder


@pytest.fixture(scope="module")
def unbroken(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of what a build gives that nothing interrupts."""
    output = tmp_path_factory.mktemp("unbroken") / "out"
    build(BuildOptions((str(inputs),), str(output), window_length=64, num_shards=40, splits={"train": "1"}))
    return digests(output)


@pytest.fixture
def start(inputs: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a build of `inputs` into tmp_path/out."""
    started: list[Process] = []

    def run(*more: str, output: Path = tmp_path / "out") -> Process:
        command = [sys.executable, "-m", "pipeline", "build", "--input", str(inputs), "--output", str(output), *FLAGS]
        started.append(subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def finished(folder: Path) -> list[Path]:
    """The notes of the shards that are finished and not yet published."""
    return sorted(folder.glob("incomplete.tmp/*/*.note.json"))


def wait_for_shards(process: Process, folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(finished(folder)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def descendants(parent: int) -> dict[int, str]:
    """{process: command line} of all processes below one."""
    parents, commands = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            commands[int(status.parent.name)] = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        match = re.search(r"^PPid:\t(\d+)", text, re.MULTILINE)
        assert match is not None
        parents[int(status.parent.name)] = int(match[1])
    below = {parent}
    while more := {process for process, above in parents.items() if above in below} - below:
        below |= more
    return {process: commands.get(process, "") for process in below - {parent}}


def gone(processes: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{process}").exists() and not _is_zombie(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _is_zombie(process: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def end(process: Process) -> str:
    """Wait for the end of a build; what it said."""
    _, error = process.communicate(timeout=60)
    assert "Traceback" not in error
    return error


def test_a_killed_worker_ends_the_build_with_a_message(start: Start, tmp_path: Path) -> None:
    process = start()
    wait_for_shards(process, tmp_path / "out", 2)
    below = descendants(process.pid)
    workers = [worker for worker, command in below.items() if "sdk_worker_main" in command]
    assert workers

    os.kill(workers[-1], signal.SIGKILL)

    error = end(process)
    assert process.returncode == 1
    assert "a process of the job was killed, perhaps for want of memory: try fewer --workers or more shards" in error
    assert "The same command goes on with what is finished" in error
    assert os.listdir(tmp_path / "out") == ["incomplete.tmp"]
    assert gone(list(below))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_interrupted_build_says_so_and_leaves_no_process(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start()
    wait_for_shards(process, tmp_path / "out", 2)
    below = descendants(process.pid)

    process.send_signal(number)

    error = end(process)
    assert process.returncode == 128 + number
    assert error.splitlines()[-1] == f"python -m pipeline: interrupted; {KEPT}"
    assert os.listdir(tmp_path / "out") == ["incomplete.tmp"]
    assert gone(list(below))
    with pytest.raises(DatasetNotFoundError, match=f"a build of it was interrupted, or is still running; {KEPT[:7]}"):
        open_dataset(tmp_path / "out")


def test_the_job_ends_with_its_launcher_and_the_next_run_goes_on(
    start: Start, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    process = start()
    wait_for_shards(process, tmp_path / "out", 5)
    below = descendants(process.pid)
    process.kill()
    assert gone(list(below))
    assert os.listdir(tmp_path / "out") == ["incomplete.tmp"]
    notes = finished(tmp_path / "out")
    shards = {name: Path(name).stat() for name in (str(note)[: -len(".note.json")] for note in notes)}
    left = notes[0].parent / "out-train.tfrecord-00000-of-00040.0123.tmp"
    left.write_bytes(b"of a process that was killed")

    process = start("--report", str(tmp_path / "report.json"))
    end(process)

    assert process.returncode == 0
    assert digests(tmp_path / "out") == unbroken
    for name, status in shards.items():
        now = (tmp_path / "out" / os.path.basename(name)).stat()
        assert (now.st_ino, now.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)  # moved, not written again
    report, manifest = json.loads((tmp_path / "report.json").read_text()), load_manifest(tmp_path / "out")
    kept, written = report["stages"]["keep"], report["stages"]["write"]
    assert kept["bytes"] >= sum(status.st_size for status in shards.values()) > 0
    assert kept["bytes"] + written["bytes"] == manifest.bytes
    assert kept["out"]["windows"] + written["out"]["windows"] == manifest.windows
    assert report["stages"]["publish"]["out"]["windows"] == report["manifest"]["windows"] == manifest.windows


def test_whatever_dies_whenever_no_half_dataset_is_left(start: Start, tmp_path: Path, unbroken: dict[str, str]) -> None:
    chance = random.Random(5)
    begun = time.monotonic()
    end(start(output=tmp_path / "timed"))
    duration = time.monotonic() - begun
    killed = 0
    while killed < 10:
        process = start()
        time.sleep(chance.uniform(0.1, 1.1 * duration))
        below = descendants(process.pid)
        victim = chance.choice([process.pid, *below])
        number = (
            signal.SIGKILL if victim != process.pid else chance.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        )
        if process.poll() is None:
            try:
                os.kill(victim, number)
            except ProcessLookupError:
                continue
        _, error = process.communicate(timeout=60)
        assert gone(list(below))
        killed += 1
        try:
            load_manifest(tmp_path / "out")
        except DatasetNotFoundError:
            assert process.returncode != 0
            continue
        assert digests(tmp_path / "out") == unbroken
        shutil.rmtree(tmp_path / "out")

    if not (tmp_path / "out/manifest.json").exists():
        end(start())
    assert digests(tmp_path / "out") == unbroken
