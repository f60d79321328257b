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
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from conftest import BuildHere, PublishAndStop
from pipeline import BuildOptions, DatasetPlan, build, plan
from pipeline.staging import stage_plan
from pipeline.write import write_shard
from shards import BuildError, DatasetNotFoundError, OutputError, load_manifest, open_dataset
from shards.verify import verify

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
        np.savez_compressed(folder / f"{i}.npz", x=np.random.default_rng(i).integers(0, 4, 1_500_000, np.uint8))
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
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


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


@pytest.mark.parametrize(
    ("mode", "part"), [("multi_processing", "sdk_worker_main"), ("multi_threading", "pipeline.beam_process")]
)
def test_a_killed_worker_ends_the_build_with_a_message(start: Start, tmp_path: Path, mode: str, part: str) -> None:
    process = start("--direct_running_mode", mode)
    wait_for_shards(process, tmp_path / "out", 2)
    below = descendants(process.pid)
    workers = [worker for worker, command in below.items() if part in command]
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
    assert f"going on with {len(notes)}/40 shards of a build that was interrupted\n" in end(process)
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
    while killed < 6:
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
        process.communicate(timeout=60)
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


def test_ctrl_c_while_headers_are_read_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for i in range(4000):
        np.save(tmp_path / f"many/{i}.npy", np.zeros(64, np.uint8))
    command = [sys.executable, "-m", "pipeline", "build", "--input", f"{tmp_path}/many", "--output", f"{tmp_path}/out"]
    process = subprocess.Popen([*command, "--window_length", "64"], stderr=subprocess.PIPE, text=True)
    while len(os.listdir(f"/proc/{process.pid}/task")) < 10:  # threads, of which those that read headers are the most
        assert process.poll() is None

    process.send_signal(signal.SIGINT)

    assert end(process) == f"python -m pipeline: interrupted; {KEPT}\n"
    assert process.returncode == 130
    assert not (tmp_path / "out").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 20 MB, of which the dataset takes 13."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_is_full_ends_the_build_and_room_lets_it_go_on(
    start: Start, small_disk: Path, unbroken: dict[str, str]
) -> None:
    process = start(output=small_disk / "out")
    wait_for_shards(process, small_disk / "out", 3)
    with (small_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(2**16)):
            pass

    error = end(process)

    assert process.returncode == 1
    lines = error.splitlines()
    (why,) = (line for line in lines if "could not be written" in line)
    assert re.fullmatch(
        rf"python -m pipeline: out-train\.tfrecord-\d{{5}}-of-00040 could not be written to {small_disk}/out/"
        r"incomplete\.tmp/[0-9a-f]{16}: No space left on device",
        why,
    )
    assert lines[-1] == "The same command goes on with what is finished; with --verbose it shows Beam's log."
    assert os.listdir(small_disk / "out") == ["incomplete.tmp"]

    process = start(output=small_disk / "out")  # there is still no room, which is told before anything is written
    assert re.search(r"the dataset needs [\d,]+ bytes, but [\d,]+ are free where .* lies$", end(process))
    assert process.returncode == 2

    (small_disk / "filler").unlink()
    end(start(output=small_disk / "out"))
    assert digests(small_disk / "out") == unbroken


@pytest.mark.skipif(shutil.which("strace") is None, reason="nothing here lets the system fail")
def test_a_disk_that_fails_in_the_middle_of_an_episode_ends_the_build_and_names_it(few: Path, tmp_path: Path) -> None:
    fails = ["-P", str(few / "b.npy"), "-e", "trace=read", "-e", "inject=read:error=EIO:when=3+"]  # after two headers
    command = [sys.executable, "-m", "pipeline", "build", "--input", str(few), "--output", str(tmp_path / "out")]
    command += ["--window_length", "64", "--num_shards", "3", "--workers", "2"]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", *fails, *command],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    if "ptrace" in done.stderr:
        pytest.skip("no right to trace")
    assert done.returncode == 1
    assert f"  {few}/b.npy could not be read while the build ran: Input/output error\n" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(DatasetNotFoundError):
        load_manifest(tmp_path / "out")

    assert subprocess.run(command, capture_output=True, check=False, timeout=100).returncode == 0
    assert load_manifest(tmp_path / "out").windows == 3 * 15


# What is refused: a build is staged, in this process, as if it had been interrupted after its first shard.


def options(inputs: Path, output: Path, **more: object) -> BuildOptions:
    values = {"window_length": 64, "num_shards": 3, "splits": {"train": "1"}, **more}
    return BuildOptions((str(inputs),), str(output), **values)  # type: ignore[arg-type]


def interrupt(planned: DatasetPlan) -> None:
    stage_plan(planned)
    assert not write_shard(planned.recipe, next(planned.tasks())).error


@pytest.fixture
def few(tmp_path: Path) -> Path:
    folder = tmp_path / "few"
    folder.mkdir()
    for name in "abc":
        np.save(folder / f"{name}.npy", np.arange(1000, dtype="i2"))
    (tmp_path / "labels.csv").write_text("path,size\na.npy,1\nb.npy,2\nc.npy,3\n")
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shift": 32}, "shift was 64 and is 32"),
        ({"seed": 1, "tail": "pad"}, "tail was drop and is pad; seed was 0 and is 1"),
        ({"nonfinite": "fail"}, "nonfinite was warn and is fail"),
        ({"num_shards": 4}, "num_shards was {'train': 3} and is {'train': 4}"),
        ({"splits": {"test": "1"}}, "splits was {'train': '1'} and is {'test': '1'}; num_shards was "),
        ({"dtype": {"window": "int32"}}, "dtype was ['int16', 'int64'] and is ['int32', 'int64']"),
    ],
    ids=lambda changes: "-".join(changes) if isinstance(changes, dict) else "",
)
def test_another_build_than_the_unfinished_one_is_refused_with_what_changed(
    few: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    labels = str(tmp_path / "labels.csv")
    interrupt(plan(options(few, tmp_path / "out", labels=labels)))
    before = digests(tmp_path / "out")

    with pytest.raises(OutputError) as caught:
        build(options(few, tmp_path / "out", labels=labels, **changes))

    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/out holds an unfinished build, and this one is another: {words}")
    assert message.endswith("Run the earlier command again to finish that, or begin anew with --overwrite")
    assert digests(tmp_path / "out") == before
    assert build(options(few, tmp_path / "out", labels=labels, overwrite=True, **changes)).windows > 0
    assert not (tmp_path / "out/incomplete.tmp").exists()


def test_episodes_that_changed_since_the_unfinished_build_are_named(few: Path, tmp_path: Path) -> None:
    interrupt(plan(options(few, tmp_path / "out")))
    os.utime(few / "a.npy", ns=(0, 0))
    (few / "b.npy").unlink()
    for i in range(5):
        np.save(few / f"d{i}.npy", np.arange(1000, dtype="i2"))

    with pytest.raises(OutputError) as caught:
        build(options(few, tmp_path / "out"))

    assert (
        "this one is another: 5 episode files are new: d0.npy, d1.npy, d2.npy, ...; 1 episode file is gone: b.npy;"
        " 1 episode file was modified: a.npy. Run"
    ) in str(caught.value)


def test_labels_that_changed_since_the_unfinished_build_are_noticed(few: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    interrupt(plan(options(few, tmp_path / "out", labels=str(labels))))
    labels.write_text(labels.read_text().replace("c.npy,3", "c.npy,4"))

    with pytest.raises(OutputError, match="this one is another: the labels have other values"):
        build(options(few, tmp_path / "out", labels=str(labels)))


def test_other_flags_are_no_other_build_and_another_place_is(few: Path, tmp_path: Path) -> None:
    first = plan(options(few, tmp_path / "out"))
    interrupt(first)

    assert plan(options(few, tmp_path / "out", shift=64, workers=1, verbose=True)).staging == first.staging
    shutil.copytree(few, tmp_path / "copy")  # with the times of the files: whether they hold the same, nothing tells
    with pytest.raises(OutputError, match=f"is another: input was {few}/ and is {tmp_path}/copy/"):
        build(options(tmp_path / "copy", tmp_path / "out"))


def test_another_build_that_finished_no_shard_is_nothing_to_keep(few: Path, tmp_path: Path) -> None:
    stage_plan(plan(options(few, tmp_path / "out")))

    assert build(options(few, tmp_path / "out", shift=32)).window.shift == 32
    assert not (tmp_path / "out/incomplete.tmp").exists()


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_whatever_but_finished_shards_is_staged_anew(
    few: Path, tmp_path: Path, build_here: BuildHere, gone: bool
) -> None:
    planned = plan(options(few, tmp_path / "out"))
    interrupt(planned)
    unbroken = digests(build_here(str(few), tmp_path / "unbroken" / "out", window_length=64, num_shards=3).folder)
    staged = [file for file in Path(planned.staging).iterdir() if ".tfrecord-" not in file.name]
    assert len(staged) == 8
    for file in staged:
        file.unlink() if gone else file.write_bytes(b"cut sho")
    Path(planned.staging).parent.joinpath("loose.json").write_bytes(b"of an older version")
    (shard,) = Path(planned.staging).glob("*-of-00003")
    number = shard.stat().st_ino

    build(options(few, tmp_path / "out"))

    assert digests(tmp_path / "out") == unbroken
    assert (tmp_path / "out" / shard.name).stat().st_ino == number


def test_notes_that_are_damaged_are_of_no_finished_shard(few: Path, tmp_path: Path) -> None:
    planned = plan(options(few, tmp_path / "out"))
    stage_plan(planned)
    task = next(planned.tasks())
    right = write_shard(planned.recipe, task)
    note = Path(planned.staging, task.file + ".note.json")
    deep = "[" * 100_000 + "]" * 100_000
    document = json.loads(note.read_text())
    for text in ("[]", '{"done": [], "moments": []}', deep, json.dumps({**document, "moments": []})):
        note.write_text(text)
        assert write_shard(planned.recipe, task) == right
    done = document["done"]
    for place, value in enumerate([done[0] + "x", done[1] + 1]):
        note.write_text(json.dumps({**document, "done": [*done[:place], value, *done[place + 1 :]]}))
        assert write_shard(planned.recipe, task) == right


def test_a_note_of_other_windows_is_forgotten(few: Path, tmp_path: Path) -> None:
    planned = plan(options(few, tmp_path / "out"))
    interrupt(planned)
    (note,) = Path(planned.staging).glob("*.note.json")
    document = json.loads(note.read_text())
    document["done"][2] += 1
    note.write_text(json.dumps(document))

    with pytest.raises(BuildError, match="was planned as"):
        build(options(few, tmp_path / "out"))
    assert build(options(few, tmp_path / "out")).windows == 45


@pytest.mark.parametrize("moves", range(8))
def test_a_replacement_beside_other_files_and_without_room_is_finished(
    few: Path,
    tmp_path: Path,
    build_here: BuildHere,
    publish_and_stop: PublishAndStop,
    moves: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build_here(str(few), tmp_path / "out", window_length=64, num_shards=3)
    (tmp_path / "out/notes.txt").write_text("mine")
    planned = plan(options(few, tmp_path / "out", shift=32, overwrite=True))
    publish_and_stop(planned, moves)
    monkeypatch.setattr("pipeline.preflight.free_bytes", lambda folder: 0)

    manifest = build(options(few, tmp_path / "out", shift=32, overwrite=True))

    assert manifest.fingerprint == planned.manifest.fingerprint
    assert load_manifest(tmp_path / "out") == manifest
    assert verify(tmp_path / "out", few) == []
    assert (tmp_path / "out/notes.txt").read_text() == "mine"
    assert not (tmp_path / "out/incomplete.tmp").exists()


def test_an_unfinished_build_goes_on_beside_other_files(few: Path, tmp_path: Path) -> None:
    interrupt(plan(options(few, tmp_path / "out")))
    (tmp_path / "out/.DS_Store").write_text("of a file manager")

    assert build(options(few, tmp_path / "out")).windows == 45


def test_a_build_goes_on_where_nobody_reads_what_it_says(
    start: Start, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    process = start()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()  # as of `2>&1 | head`, once it has seen enough

    assert process.wait(timeout=100) == 0
    assert digests(tmp_path / "out") == unbroken


def test_a_replacement_that_is_interrupted_leaves_the_old_dataset_until_the_new_one_is_whole(
    start: Start, few: Path, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    build(options(few, tmp_path / "out"))
    old = digests(tmp_path / "out")
    process = start("--overwrite")
    wait_for_shards(process, tmp_path / "out", 3)
    process.kill()
    process.communicate()

    assert {name: digest for name, digest in digests(tmp_path / "out").items() if "/" not in name} == old
    process = start()
    assert "already holds a dataset" in end(process)
    end(start("--overwrite"))
    assert digests(tmp_path / "out") == unbroken


def test_a_second_build_into_the_folder_is_refused(start: Start, few: Path, tmp_path: Path) -> None:
    process = start()
    wait_for_shards(process, tmp_path / "out", 2)

    with pytest.raises(OutputError, match="another build is writing to"):
        build(options(few, tmp_path / "out"))

    end(process)
    assert open_dataset(tmp_path / "out").manifest.windows == 4 * (1_500_000 // 64)
