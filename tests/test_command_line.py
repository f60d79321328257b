"""The commands as people type them: what they print, how they end, and that no mistake ends in a traceback."""

import fcntl
import json
import os
import pty
import re
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
    assert lines[1:14] == [
        "episodes  2 of 3 used: 140 steps, 840 B",
        "features  window: int16 with shape (steps, 3)",
        "windows   31 of 10 steps; a window every 4 steps; tail: drop",
        "too short 1 episodes have no window: run1/s.npy",
        "uncovered 4 steps (2.9%) lie in no window",
        "",
        "split  episodes  windows             share  shards     size",
        "train         2       31  100.0% (1 asked)       1  4.4 KiB",
        "",
        "tail           windows  zero steps  steps lost  without window",
        "drop (chosen)       31           0          11               1",
        "pad                 34           7           0               0",
        "align               33           0           7               1",
    ]
    assert lines[15].startswith("output    4.4 KiB, 5.31 times the input; free there: ")
    assert lines[16:] == [
        "smaller   1.3 KiB with --windows_per_record 12: windows that overlap share a record (auto chooses the number)"
    ]
    assert not output.exists()


def test_plan_speaks_json(inputs: str, tmp_path: Path) -> None:
    arguments = ["--window_length", "10", "--shift", "4", "--splits", "train=0.5,test=0.5", "--num_shards", "train=3"]
    arguments += ["--windows_per_record", "1"]
    done = run("plan", "--json", "--input", inputs, "--output", str(tmp_path / "out"), *arguments)
    described = json.loads(done.stdout)
    assert described.pop("free_bytes") > 0
    assert (described.pop("root"), described.pop("inflated")) == (inputs + "/", False)
    splits = described.pop("splits")
    assert described.pop("recommended") is None  # two shards of records that are shared would hold too few of them
    assert described == {
        "name": "out",
        "output": str(tmp_path / "out"),
        "window": {"length": 10, "shift": 4, "stride": 1, "tail": "drop", "windows_per_record": 1},
        "episodes": {"found": 3, "used": 2},
        "features": ["window: int16 with shape (steps, 3)"],
        "steps": 140,
        "input_bytes": 840,
        "uncovered_steps": 4,
        "tails": {
            "drop": {"windows": 31, "padded_steps": 0, "lost_steps": 11, "episodes_without_window": 1},
            "pad": {"windows": 34, "padded_steps": 7, "lost_steps": 0, "episodes_without_window": 0},
            "align": {"windows": 33, "padded_steps": 0, "lost_steps": 7, "episodes_without_window": 1},
        },
        "short": ["run1/s.npy"],
        "skipped": {},
        "labels_without_episode": [],
        "splitting": {"by": "episode", "group_by": None, "purge": 0},
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
    assert all(re.match(r"[01]/1 shards, ", line) for line in quiet.stderr.splitlines())
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
        "source    2 episodes, 140 steps, 840 B; left out: 1 too short; 4 steps lie in no window",
        "windows   31 of 10 steps; a window every 4 steps; tail: drop; 4.4 KiB",
        "split by  whole episodes",
        "",
        "split  episodes  windows  shards     size",
        "train         2       31       1  4.4 KiB",
        "",
        "a record has 144 bytes",
        "feature  dtype    shape  encoding  offset  classes",
        "window   int16  (10, 3)     bytes      36",
        "episode  int64       ()    varint     113",
        "start    int64       ()    varint     134",
        "",
        "of train, each step once",
        "feature  count     mean      std  min  max  nan  infinite",
        "window     408  121.353  84.4025    0  293    0         0",
        "  [0]      136  120.353  84.3985    0  291    0         0",
        "  [1]      136  121.353  84.3985    1  292    0         0",
        "  [2]      136  122.353  84.3985    2  293    0         0",
    ]
    described = json.loads(run("info", output, "--json", module="shards").stdout)
    assert (described["windows"], described["record_bytes"], described["source"]["short"]) == (31, 144, 1)


MISTAKES = [
    (["--window_length", "0"], "window_length must be a whole number of 1 to 2147483647, not 0"),
    (["--window_length", "ten"], "argument --window_length: invalid int value: 'ten'"),
    (["--window_length", "10", "--shift", "-1"], "shift must be a whole number of 1 to 2147483647, not -1"),
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
    (["--window_length", "100000000000"], "window_length must be a whole number of 1 to 2147483647, not 100000000000"),
    (["--window_length", "100000000", "--tail", "pad"], "has 600000000 bytes with window; at most 268435455 an array"),
    (["--window_length", "10", "--stride", "12"], "no episode is as long as one window, 109 steps"),
    (["--window_length", "10", "--tail", "keep"], "argument --tail: invalid choice: 'keep'"),
    (
        ["--window_length", "10", "--windows_per_record", "many"],
        "windows_per_record must be a whole number of 1 or more",
    ),
    (["--window_length", "10", "--windows_per_record", "99999999"], "a smaller window_length or fewer windows_per_rec"),
    (["--window_length", "10", "--features", "start"], "features must be a sequence of names, not ('start',)"),
    (["--window_length", "10", "--features", "state"], "has no array 'state'; it holds window"),
    (["--window_length", "10", "--dtype", "window"], "dtype must be like observation=float16, not 'window'"),
    (["--window_length", "10", "--dtype", "window=bool"], "dtype cannot store window, which is int16, as bool"),
    (["--window_length", "10", "--dtype", "x=int8"], "dtype names x, but the features are window"),
    (["--window_length", "10", "--labels", "nowhere.csv"], "labels file nowhere.csv cannot be read"),
    (["--window_length", "10", "--splits_from", "fold"], "splits_from names a column of labels: give labels"),
    (["--window_length", "10", "--splits", "dirs", "--split_by", "time"], "splits=dirs and split_by=time contradict"),
    (["--window_length", "5", "--splits", "dirs", "--num_shards", "test=1"], "num_shards names 'test', which is none"),
    (["--window_length", "10", "--group_by", "("], "group_by '(' is no regular expression"),
    (["--window_length", "10", "--purge", "3"], "purge is for split_by=time only"),
    (["--window_length", "10", "--nonfinite", "drop"], "argument --nonfinite: invalid choice: 'drop'"),
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
    assert f"input '{tmp_path / 'empty'}' matches no .npy or .npz file" in done.stderr


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
        "episodes must agree in arrays, dtypes and step shapes, but there are 2 kinds:",
        "  2 of float32 with shape (steps,), such as better.npy, good.npy",
        "  1 of float32 with shape (steps, 2), such as other.npy",
        "Mend or remove them, or leave them out with --on_error skip.",
    ]
    assert not (tmp_path / "out").exists()
    done = run("build", *arguments, "--on_error", "skip")
    assert done.returncode == 0
    assert "skipped   3 files cannot be used: empty.npy is empty, " in done.stdout
    assert (tmp_path / "out" / "episodes.csv").read_text().splitlines() == [
        "episode,path,steps,split,begin,end,windows,group,left_out",
        "0,better.npy,30,train,0,30,3,,",
        "1,empty.npy,0,,0,0,0,,is empty",
        "2,good.npy,20,train,0,20,2,,",
        '3,other.npy,0,,0,0,0,,"is float32 with shape (steps, 2) where most episodes are float32 with shape (steps,)"',
        "4,text.npy,0,,0,0,0,,is no .npy file: it does not begin with the .npy magic bytes",
    ]


def save_spoilt(folder: Path) -> str:
    """Two episodes of two arrays and a value, of which one is not finite in three places."""
    folder.mkdir()
    x, y = np.zeros((30, 2), np.float32), np.zeros(30)
    np.savez(folder / "a.npz", x=x, y=y, gain=1.5)
    x[[7, 20], 1], y[25], x[29, 0] = np.nan, np.inf, np.nan
    np.savez(folder / "b.npz", x=x, y=y, gain=-np.inf)
    return str(folder)


def test_build_warns_of_what_is_not_finite(tmp_path: Path) -> None:
    source, output = save_spoilt(tmp_path / "in"), str(tmp_path / "out")
    done = run("build", "--input", source, "--output", output, "--window_length", "9", "--shift", "4", "--workers", "1")
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "shards" not in line] == [
        "warning: b.npz has 1 NaN or infinite values in gain",
        "warning: b.npz has 2 NaN or infinite values in x, the first in step 7",
        "warning: b.npz has 1 NaN or infinite values in y, the first in step 25",
    ]  # the last step is in no window
    assert "wrote 12 windows" in done.stdout
    info = run("info", output, module="shards").stdout.splitlines()
    assert info[-3:] == [
        "not finite: 1 values in episode 1, gain, from step 0 on",
        "not finite: 2 values in episode 1, x, from step 7 on",
        "not finite: 1 values in episode 1, y, from step 25 on",
    ]


def test_build_fails_for_what_is_not_finite_if_told_so(tmp_path: Path) -> None:
    source, output = save_spoilt(tmp_path / "in"), tmp_path / "out"
    arguments = ["--input", source, "--output", str(output), "--window_length", "9", "--workers", "1"]
    arguments += ["--nonfinite", "fail"]
    whole = run("build", *arguments)
    assert whole.returncode == 1
    told = f"{source}/b.npz holds NaN or infinite values in gain, stored as float64, for the whole episode\n"
    assert told in whole.stderr
    steps = run("build", *arguments, "--features", "x,y")
    assert steps.returncode == 1
    assert f"{source}/b.npz holds NaN or infinite values in x, stored as float32, from step 7 on\n" in steps.stderr
    assert "run the same command again: it goes on with what is finished" in steps.stderr
    assert "Traceback" not in whole.stderr + steps.stderr
    assert not (output / "manifest.json").exists()


def test_every_flag_reaches_the_dataset(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for i in range(6):
        np.savez(source / f"s{i % 3}_{i}.npz", x=np.arange(40 + i), y=np.zeros((40 + i, 2)), z=np.zeros(3))
    rows = [f"s{i % 3}_{i}.npz,{i / 2},{'ab'[i % 2]}" for i in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,score,side", *rows, "gone.npz,1,c"]) + "\n")
    flags = {
        "window_length": "5",
        "shift": "3",
        "stride": "2",
        "tail": "pad",
        "windows_per_record": "4",
        "features": "y,x",
        "dtype": "x=int16,score=float16",
        "labels": str(tmp_path / "labels.csv"),
        "name": "all",
        "splits": "train=0.5,test=0.5",
        "split_by": "hash",
        "group_by": "s[0-9]",
        "seed": "2",
        "num_shards": "train=2",
        "workers": "1",
        "nonfinite": "fail",
    }
    arguments = ["--input", str(source), "--output", str(tmp_path / "out")]
    done = run("build", *arguments, *(f"--{flag}={value}" for flag, value in flags.items()))
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert manifest["window"] == {"length": 5, "shift": 3, "stride": 2, "tail": "pad", "windows_per_record": 4}
    assert [(f["name"], f["dtype"], f["shape"], f["classes"]) for f in manifest["features"]] == [
        ("y", "float64", [18, 2], []),
        ("x", "int16", [18], []),
        ("score", "float16", [], []),
        ("side", "int64", [], ["a", "b"]),
        ("episode", "int64", [], []),
        ("count", "int64", [], []),
        ("valid", "int64", [], []),
        ("start", "int64", [], []),
    ]
    assert manifest["splitting"] == {"by": "hash", "group_by": "s[0-9]", "purge": 0}
    assert (manifest["name"], manifest["seed"]) == ("all", 2)
    assert [(split["name"], len(split["shards"])) for split in manifest["splits"]] == [("train", 2), ("test", 1)]
    assert "labels    1 rows are of no episode: gone.npz" in done.stdout.splitlines()


def test_splits_may_be_cut_along_time_from_the_command_line(inputs: str, tmp_path: Path) -> None:
    arguments = ["--window_length", "10", "--splits", "train=0.5,test=0.5", "--split_by", "time", "--purge", "4"]
    done = run("plan", "--json", "--input", inputs, "--output", str(tmp_path / "out"), *arguments)
    described = json.loads(done.stdout)
    assert described["splitting"] == {"by": "time", "group_by": None, "purge": 4}
    assert [split["windows"] for split in described["splits"]] == [6, 6]


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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--window_length", "4", "--labels", "a", "--labels", "b"], "--labels is given twice"),
        (["--window-length", "4"], "--window-length is no flag of this command; did you mean --window_length?"),
        (
            ["--window_length", "4", "--shfit", "2"],
            "--shfit is a flag neither of this command nor of Beam; did you mean",
        ),
    ],
)
def test_flags_given_twice_or_mistyped_are_told(tmp_path: Path, arguments: list[str], told: str) -> None:
    done = run("plan", "--input", str(tmp_path), "--output", str(tmp_path / "out"), *arguments)
    assert done.returncode == 2
    assert told in done.stderr
