"""The commands as people type them: what they print, how they end, and that no mistake ends in a traceback."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from conftest import SaveEpisodes


def run(*arguments: str, module: str = "pipeline", cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes) -> str:
    arrays = {
        f"run{i}/s": np.arange(steps * 3, dtype=np.int16).reshape(steps, 3) for i, steps in enumerate([40, 7, 100])
    }
    return save_episodes(tmp_path_factory.mktemp("cli") / "in", arrays)


def test_plan_tells_what_build_would_do_and_writes_nothing(inputs: str, tmp_path: Path) -> None:
    output = tmp_path / "My Data"
    done = run("plan", "--input", inputs, "--output", str(output), "--window_length", "10", "--shift", "4")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"dataset   my_data in {output}"
    assert lines[1:8] == [
        "episodes  2 of 3 used: 140 steps, 840 B, int16 of shape (steps, 3)",
        "windows   31 of 10 steps, 4 apart",
        "too short 1 episodes have no window: run1/s.npy",
        "uncovered 4 steps (2.9%) lie in no window",
        "",
        "split  episodes  windows             share  shards     size",
        "train         2       31  100.0% (1 asked)       1  4.4 KiB",
    ]
    assert lines[9].startswith("output    4.4 KiB, 5.31 times the input; free there: ")
    assert not output.exists()


def test_plan_speaks_json(inputs: str, tmp_path: Path) -> None:
    arguments = ["--window_length", "10", "--shift", "4", "--splits", "train=0.5,test=0.5", "--num_shards", "train=3"]
    done = run("plan", "--json", "--input", inputs, "--output", str(tmp_path / "out"), *arguments)
    described = json.loads(done.stdout)
    assert described.pop("free_bytes") > 0
    splits = described.pop("splits")
    assert described == {
        "name": "out",
        "output": str(tmp_path / "out"),
        "window": {"length": 10, "shift": 4},
        "episodes": {"found": 3, "used": 2},
        "dtype": "int16",
        "step_shape": [3],
        "steps": 140,
        "input_bytes": 840,
        "uncovered_steps": 4,
        "short": ["run1/s.npy"],
        "skipped": {},
        "record_bytes": 144,
        "windows": 31,
        "bytes": 4464,
        "ratio": 4464 / 840,
    }
    assert [(s["name"], s["fraction_asked"], s["episodes"], s["shards"]) for s in splits] == [
        ("train", "0.5", 1, 3),
        ("test", "0.5", 1, 1),
    ]
    assert sorted(s["windows"] for s in splits) == [8, 23]
    assert sum(s["bytes"] for s in splits) == 4464


def test_build_ends_with_two_lines_that_load_the_dataset(inputs: str, tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    done = run("build", "--input", inputs, "--output", output, "--window_length", "10", "--shift", "4")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith("1/1 shards, 31/31 windows, ")
    assert f"wrote 31 windows, 4.4 KiB, to {output}. Load them with\n" in done.stdout
    lines = "\n".join(line.strip() for line in done.stdout.rstrip().splitlines()[-2:])
    assert lines.startswith("from reader import load\ndataset = load(")
    check = f"{lines}\nprint(sum(len(batch['window']) for batch in dataset))"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=120)
    assert loaded.stdout == "31\n"


def test_build_says_nothing_of_beam_unless_asked(inputs: str, tmp_path: Path) -> None:
    arguments = ["build", "--input", inputs, "--window_length", "10"]
    quiet = run(*arguments, "--output", str(tmp_path / "quiet"))
    verbose = run(*arguments, "--output", str(tmp_path / "verbose"), "--verbose")
    assert len(quiet.stderr.splitlines()) == 1
    assert "INFO:apache_beam" in verbose.stderr
    assert quiet.returncode == verbose.returncode == 0


def test_build_shows_a_bar_on_a_terminal(inputs: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-m", "pipeline", "build", "--input", inputs, "--output", str(tmp_path / "out")]
    with subprocess.Popen([*command, "--window_length", "10"], stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # raised when the other side is closed
            while True:
                shown += os.read(ours, 4096)
        assert process.wait(timeout=60) == 0
    os.close(ours)
    assert "14/14" in shown.decode()
    assert "1/1 shards" in shown.decode()
    assert "windows/s" in shown.decode()


def test_info_prints_a_dataset(inputs: str, tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    run("build", "--input", inputs, "--output", output, "--window_length", "10", "--shift", "4", "--seed", "5")
    done = run("info", output, module="shards")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("dataset   out, seed 5, fingerprint ")
    assert lines[1:] == [
        "source    2 episodes, 140 steps, int16; left out: 1 too short; 4 steps lie in no window",
        "windows   31 of 10 steps, 4 apart; 4.4 KiB",
        "",
        "split  episodes  windows  shards     size",
        "train         2       31       1  4.4 KiB",
        "",
        "a record has 144 bytes",
        "feature  dtype    shape  encoding  offset",
        "window   int16  (10, 3)     bytes      36",
        "episode  int64       ()    varint     113",
        "start    int64       ()    varint     134",
    ]
    described = json.loads(run("info", output, "--json", module="shards").stdout)
    assert (described["windows"], described["record_bytes"], described["source"]["short"]) == (31, 144, 1)


MISTAKES = [
    (["--window_length", "0"], "window_length must be a whole number of 1 or more, not 0"),
    (["--window_length", "ten"], "argument --window_length: invalid int value: 'ten'"),
    (["--window_length", "10", "--shift", "-1"], "shift must be a whole number of 1 or more, not -1"),
    (["--window_length", "10", "--splits", "train=0.8"], "fractions must add up to 1, but 0.8 = 0.8"),
    (["--window_length", "10", "--splits", "all=1"], "split 'all' must be"),
    (["--window_length", "10", "--num_shards", "test=2"], "num_shards names 'test', which is none of the splits"),
    (["--window_length", "10", "--num_shards", "99"], "asks for 99 shards of split train, which has 14 windows"),
    (["--window_length", "10", "--num_shards", "2", "--shard_size", "1MiB"], "not allowed with argument"),
    (["--window_length", "10", "--shard_size", "big"], "shard_size must be a size such as 128MiB"),
    (["--window_length", "10", "--name", "My-Data"], "name 'My-Data' must be a lower-case letter"),
    (["--window_length", "10", "--shfit", "4"], "--shfit is a flag neither of this command nor of Beam"),
    (["--window_length", "10", "--direct_num_workers", "many"], "invalid int value: 'many'"),
    (["--window_length", "10", "a/0.npy"], "unexpected argument 'a/0.npy': neither a flag nor the value of one; quote"),
    (["--window_length", "10", "extra"], "unexpected argument 'extra'"),
    (["--window_length", "101"], "no episode is as long as one window"),
    (["--window_length", "10", "--splits", "a=0.5,b=0.25,c=0.25"], "3 splits need as many episodes"),
    (["--window_length", "100000000000"], "has 600000000000 bytes; at most 268435455 fit a record"),
    (["--window_length", "10", "--workers", "0"], "workers must be a whole number of 1 or more"),
    ([], "the following arguments are required: --window_length"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
@pytest.mark.parametrize("command", ["plan", "build"])
def test_a_mistake_is_one_message_and_status_2(
    inputs: str, tmp_path: Path, command: str, arguments: list[str], message: str
) -> None:
    done = run(command, "--input", inputs, "--output", str(tmp_path / "out"), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["plan", "build"])
def test_missing_input_is_named(tmp_path: Path, command: str) -> None:
    arguments = ["--output", str(tmp_path / "out"), "--window_length", "10"]
    done = run(command, "--input", str(tmp_path / "nowhere"), *arguments)
    assert done.returncode == 2
    assert f"input '{tmp_path / 'nowhere'}' is not there" in done.stderr
    (tmp_path / "empty").mkdir()
    done = run(command, "--input", str(tmp_path / "empty"), *arguments)
    assert done.returncode == 2
    assert f"input '{tmp_path / 'empty'}' matches no .npy file" in done.stderr


def test_bad_files_are_reported_together_or_skipped(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    source = save_episodes(tmp_path / "in", {"good": np.zeros(20, np.float32), "other": np.zeros((20, 2), np.float32)})
    save_episodes(tmp_path / "in", {"better": np.zeros(30, np.float32)})
    (tmp_path / "in" / "empty.npy").touch()
    (tmp_path / "in" / "text.npy").write_text("0, 1, 2")
    arguments = ["--input", source, "--output", str(tmp_path / "out"), "--window_length", "10"]
    done = run("build", *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "python -m pipeline: 2 of 5 episode files cannot be used:",
        f"  {source}/empty.npy is empty",
        f"  {source}/text.npy is no .npy file: it does not begin with the .npy magic bytes",
        "episodes must agree in dtype and step shape, but there are 2 kinds:",
        "  2 of float32 with shape (steps,), such as better.npy, good.npy",
        "  1 of float32 with shape (steps, 2), such as other.npy",
        "Mend or remove them, or leave them out with --on_error skip.",
    ]
    assert not (tmp_path / "out").exists()
    done = run("build", *arguments, "--on_error", "skip")
    assert done.returncode == 0
    assert "skipped   3 files cannot be used: empty.npy is empty, " in done.stdout
    assert (tmp_path / "out" / "episodes.csv").read_text().splitlines() == [
        "episode,path,split,steps,windows,left_out",
        "0,better.npy,train,30,3,",
        "1,empty.npy,,0,0,is empty",
        "2,good.npy,train,20,2,",
        '3,other.npy,,0,0,"is float32 with shape (steps, 2) where most episodes are float32 with shape (steps,)"',
        "4,text.npy,,0,0,is no .npy file: it does not begin with the .npy magic bytes",
    ]


@pytest.mark.parametrize("arguments", [["info"], ["info", "nowhere"], ["look", "x"], ["info", "x", "--what"], []])
def test_mistakes_in_info_are_one_message_and_status_2(arguments: list[str], tmp_path: Path) -> None:
    done = run(*arguments, module="shards", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("python -m shards")
    assert "Traceback" not in done.stderr


def test_output_into_a_closed_pipe_is_no_error(inputs: str, tmp_path: Path) -> None:
    command = (
        f"{sys.executable} -m pipeline plan --json --input {inputs} --output {tmp_path}/o --window_length 10 | true"
    )
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""


def test_a_build_goes_on_when_its_reader_has_gone(inputs: str, tmp_path: Path) -> None:
    for number, ending in enumerate(["| true", ">&-"]):
        command = f"{sys.executable} -m pipeline build --input {inputs} --output {tmp_path}/{number} --window_length 10"
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command} {ending}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert (tmp_path / str(number) / "manifest.json").exists()


def test_file_names_that_are_no_text_are_shown_somehow(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "long.npy", np.zeros(20, np.float32))
    with open(os.fsencode(tmp_path) + b"/in/short\xff.npy", "wb") as file:
        np.save(file, np.zeros(2, np.float32))
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "plan",
        "--input",
        str(tmp_path / "in"),
        "--output",
        str(tmp_path / "o"),
    ]
    done = subprocess.run(
        [*command, "--window_length", "10"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
    )
    assert "too short 1 episodes have no window: short\\udcff.npy" in done.stdout
