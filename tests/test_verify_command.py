"""`python -m shards verify` as it is run: exit statuses, what it prints where, workers, Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from forgery import patch
from shards import Dataset
from shards.__main__ import main
from shards.progress_line import ProgressLine
from shards.verify import examine
from shards.verify.side_by_side import in_processes


@pytest.fixture(scope="module")
def dataset(save_episodes: SaveEpisodes, build_here: BuildHere, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("command")
    inputs = save_episodes(folder / "in", [np.arange(n, dtype="float32") for n in (40, 23, 64)])
    return build_here(inputs, folder / "out", window_length=6, shift=2, num_shards=4)


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "shards", "verify", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def test_a_whole_dataset_is_told_in_one_line_and_nothing_else(dataset: Dataset) -> None:
    done = run(dataset.folder, "--source", dataset.folder.parent / "in")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"{dataset.folder} is whole: 57 windows in 4 shards, each as the manifest has it; no step is in two splits;"
        f" each has the bits of its episode's file in {dataset.folder.parent / 'in'}\n"
    )


def test_faults_are_listed_with_exit_status_1(build_here: BuildHere, dataset: Dataset, tmp_path: Path) -> None:
    broken = build_here(str(dataset.folder.parent / "in"), tmp_path / "out", window_length=6, shift=2, num_shards=2)
    file = broken["train"].split.shards[0].file
    (broken.folder / "incomplete.tmp").mkdir()
    patch(broken.folder / file, broken.manifest.layout.field("window").offset, b"\x01\x02\x03")
    done = run(broken.folder)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[1].startswith(f"{file} is damaged in record 0, the window of e00")
    assert lines[-1].startswith("note: incomplete.tmp is there")
    assert done.stderr == f"{broken.folder}: 3 faults; copy or build the dataset again\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "python -m shards: no dataset at 'nothing': there is no such folder\n"),
        (["{}", "--source", "nothing"], "python -m shards: no source at 'nothing': give the folder that the paths in "),
        (
            ["{}", "--workers", "0"],
            "python -m shards verify: argument --workers: '0' is not a whole number of 1 or more",
        ),
        (["{}", "--quiet"], "python -m shards: unknown arguments: --quiet"),
    ],
)
def test_mistakes_have_exit_status_2(
    dataset: Dataset, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    line = ["verify", *(text.format(dataset.folder) for text in arguments)]
    try:
        status: object = main(line)
    except SystemExit as ended:
        status = ended.code
    output, errors = capsys.readouterr()
    assert (status, output) == (2, "")
    assert errors.startswith(message)


def test_a_script_without_a_main_guard_may_verify(dataset: Dataset, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"from shards.verify import verify\nprint(verify({str(dataset.folder)!r}))\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_processes_find_what_threads_find(build_here: BuildHere, dataset: Dataset, tmp_path: Path) -> None:
    source = dataset.folder.parent / "in"
    broken = build_here(str(source), tmp_path / "out", window_length=6, shift=2, num_shards=3)
    patch(broken.folder / broken["train"].split.shards[1].file, 100, b"\x01\x02\x03")
    np.save(source / "e001.npy", np.load(source / "e001.npy") + 1)
    findings = examine(broken.folder, source, partial(in_processes, workers=2))
    assert findings == examine(broken.folder, source)
    assert len(findings.faults) > 5
    np.save(source / "e001.npy", np.load(source / "e001.npy") - 1)


BIG = """
import sys
from shards import __main__
from shards.verify import side_by_side
__main__._PROCESSES_FROM = 0
if __name__ == "__main__":
    sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.fixture
def started(dataset: Dataset, tmp_path: Path) -> "subprocess.Popen[str]":
    """A command whose workers have begun, and wait for a shard that never ends."""
    script = tmp_path / "big.py"
    script.write_text(BIG + "else:\n    import time\n    side_by_side.check = lambda *_: time.sleep(1000)\n")
    line = [sys.executable, str(script), "verify", str(dataset.folder), "--workers", "2"]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def children(process: "subprocess.Popen[str]", count: int) -> list[int]:
    """The workers of a process, once there are so many and they have begun."""
    for _ in range(300):
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        names = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}
        workers = [pid for pid, name in names.items() if b"spawn_main" in name]
        if len(workers) == count:
            return workers
        time.sleep(0.05)
    raise AssertionError("no workers")


on_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


@on_linux
@pytest.mark.parametrize("later", [0.0, 1.5])
def test_an_interrupt_ends_everything_at_once(started: "subprocess.Popen[str]", later: float) -> None:
    pids = children(started, 2)
    time.sleep(later)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does: every process gets it
    output, errors = started.communicate(timeout=10)
    assert (started.returncode, output, errors) == (130, "", "python -m shards: interrupted\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@on_linux
def test_a_worker_that_is_killed_is_told(started: "subprocess.Popen[str]") -> None:
    os.kill(children(started, 2)[0], signal.SIGKILL)
    output, errors = started.communicate(timeout=20)
    assert (started.returncode, output, errors) == (
        1,
        "",
        "python -m shards: a worker process was killed, perhaps for want of memory; run it again with --workers 1\n",
    )


@on_linux
def test_workers_end_with_a_parent_that_is_killed(started: "subprocess.Popen[str]") -> None:
    pids = children(started, 2)
    time.sleep(1.5)
    started.kill()
    started.communicate(timeout=10)
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return
        time.sleep(0.1)
    raise AssertionError("workers outlive their parent")


class Terminal:
    def __init__(self, terminal: bool) -> None:
        self.text, self.isatty = "", lambda: terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("terminal", "text"),
    [
        (
            True,
            "\r120/1,000 MB, 40 MB/s, 22 s left\x1b[K\r160/1,000 MB, 40 MB/s, 21 s left\x1b[K"
            "\r520/1,000 MB, 40 MB/s, 12 s left\x1b[K\r\x1b[K",
        ),
        (False, "120/1,000 MB, 40 MB/s, 22 s left\n520/1,000 MB, 40 MB/s, 12 s left\n"),
    ],
)
def test_progress_is_shown_after_two_seconds(monkeypatch: pytest.MonkeyPatch, terminal: bool, text: str) -> None:
    stderr, now = Terminal(terminal), [100.0]
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    line = ProgressLine(10**9)
    for seconds in (1, 1.9, 3, 3.1, 4, 13):
        now[0] = 100.0 + seconds
        line.show(int(seconds * 4e7))
    line.clear()
    assert stderr.text == text


def test_a_name_cannot_pass_for_a_line_of_the_output(tmp_path: Path, build_here: BuildHere) -> None:
    (tmp_path / "in").mkdir()
    name = "a\nout is whole\x1b[2J.npy"
    np.save(tmp_path / "in" / name, np.zeros(20))
    dataset = build_here(str(tmp_path / "in"), tmp_path / "out", window_length=4)
    (tmp_path / "in" / name).unlink()

    line = [sys.executable, "-m", "shards", "verify", str(dataset.folder), "--source", str(tmp_path / "in")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)

    assert done.stdout == "a\\nout is whole\\x1b[2J.npy cannot be read: No such file or directory\n"
    assert done.returncode == 1


def test_faults_count_also_where_nobody_reads_them(tmp_path: Path, build_here: BuildHere, dataset: Dataset) -> None:
    broken = build_here(str(dataset.folder.parent / "in"), tmp_path / "out", window_length=6, shift=2, num_shards=3)
    patch(broken.folder / broken["train"].split.shards[1].file, 100, b"\x01\x02\x03")
    line = [sys.executable, "-m", "shards", "verify", str(broken.folder)]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(write)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
