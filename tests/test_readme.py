"""The README's commands and code, run as they stand there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from conftest import SaveEpisodes
from reader import load

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    random = np.random.default_rng(0)
    save_episodes(folder / "episodes", [random.standard_normal((200 + i, 2)).astype(np.float32) for i in range(20)])
    rows = ["path,task,success"]
    for day in range(6):
        for episode in range(4):
            path = folder / "robot" / f"day{day}" / f"e{episode}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            steps = 140 + 7 * episode
            arrays = {"observation": random.standard_normal((steps, 32)), "action": random.standard_normal((steps, 7))}
            np.savez(path, **arrays, camera=np.eye(3), note="a text")
            rows.append(f"day{day}/e{episode}.npz,{['pick', 'place'][episode % 2]},{day % 2}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_the_readme_holds_these_commands() -> None:
    assert [command.split()[:4] for command in COMMANDS] == [
        ["make", "demo"],
        ["make", "test"],
        ["python", "-m", "pipeline", "plan"],
        ["python", "-m", "pipeline", "build"],
        ["python", "-m", "shards", "info"],
        ["python", "-m", "pipeline", "build"],
        ["python", "-m", "shards", "verify"],
    ]
    assert len(CODE) == 7
    assert "SPEED_TABLE" not in README


def test_no_document_has_a_gap_that_was_to_be_filled() -> None:
    for file in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")):
        assert re.findall(r"@[A-Z]+@|TODO|FIXME", file.read_text()) == [], file.name


def test_the_python_commands_and_code_run_in_the_order_they_stand(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for command in COMMANDS[2:]:
        words = [sys.executable, *shlex.split(command)[1:]]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    model = keras.Sequential([keras.layers.Input((64, 2)), keras.layers.Dense(2)])
    model.compile(loss="mse")
    code = CODE[0].replace("epochs=10", "epochs=2, verbose=0")
    exec(code, {"model": model})
    assert len(model.history.history["val_loss"]) == 2
    exec(CODE[1], {})
    assert re.fullmatch(r"15\d \(64, 2\) \('e0\d\d\.npy', \d+\)\n", capsys.readouterr().out)
    exec(CODE[4].replace("gs://bucket/out", "windows"), {"load": load})
    assert len(list(Path("cache").glob("windows-train-*/*.tfrecord*"))) == 1
    exec(CODE[5].replace("epochs=2", "epochs=2, verbose=0"), {})
    for code in (CODE[6], CODE[6].replace("epochs=2", "epochs=3")):
        exec(code.replace("shuffle=False", "shuffle=False, verbose=0"), {"model": model})
    assert model.history.epoch == [2]  # it went on
    (folder / "windows").rename(folder / "older")
    exec(CODE[2], {})
    assert capsys.readouterr().out == "192\n"
    assert (folder / "windows" / "manifest.json").exists()
    names: dict[str, Any] = {}
    exec(CODE[3], names)
    assert capsys.readouterr().out == "{'task': ('pick', 'place')}\n"
    x, y = next(iter(names["clone"]))
    assert (x.shape[1:], x.dtype, y.shape[1:]) == ((64, 32), "float16", (64, 7))
    x, y = next(iter(names["outcome"]))
    assert (x.shape[1:], y.shape[1:]) == ((64, 32), ())


def test_make_demo_trains_a_model_that_beats_the_best_constant_answer(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "$(RUN) examples/demo.py --folder demo" in makefile
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--folder", str(tmp_path), "--episodes", "150"]
    done = subprocess.run(
        [*command, "--epochs", "4"], capture_output=True, text=True, timeout=240, check=True, env=os.environ
    )
    match = re.search(
        r"validation loss \d\.\d+, that of the best constant answer \d\.\d+: ratio (\d\.\d+)", done.stdout
    )
    assert match is not None
    assert 0.03 < float(match[1]) < 0.3


def test_help_of_build_names_every_flag_of_the_readme() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "build", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    table = README[README.index("### Building") : README.index("Every other flag goes to Beam")]
    flags = set(re.findall(r"^\| `(--\w+)", table, re.MULTILINE))
    assert flags == set(re.findall(r"--\w+", done.stdout)) - {"--help", "--runner"}
