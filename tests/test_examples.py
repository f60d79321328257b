"""The examples, run as their docstrings say, on small data of known answers."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_classifier_tells_unseen_episodes_apart(tmp_path: Path, save_episodes: SaveEpisodes) -> None:
    random = np.random.default_rng(0)
    waves = {}
    for speaker, period in {"ann": 5, "bob": 9, "cid": 17}.items():
        for i in range(12):
            time = np.arange(random.integers(40, 60)) + random.integers(period)
            wave = np.stack([np.sin(2 * np.pi * time / period), np.cos(2 * np.pi * time / period)], axis=1)
            waves[f"{speaker}{i}"] = (wave + 0.1 * random.standard_normal(wave.shape)).astype(np.float32)
    inputs = save_episodes(tmp_path / "in", waves)
    rows = [f"{name}.npy,{name[:3]}" for name in waves]
    (tmp_path / "labels.csv").write_text("\n".join(["path,speaker", *rows]))
    command = [sys.executable, str(EXAMPLES / "classify.py"), "--input", inputs, "--target", "speaker"]
    command += ["--labels", str(tmp_path / "labels.csv"), "--output", str(tmp_path / "out"), "--epochs", "8"]
    for _ in range(2):  # the second time replaces the dataset
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    found = dict(re.findall(r"^(windows|episodes): +([01]\.\d+)", done.stdout, re.MULTILINE))
    assert float(found["windows"]) > 0.8
    assert float(found["episodes"]) > 0.9


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes) -> str:
    """Episodes of a point on a circle that turns evenly, so that the next step follows from the last."""
    turns = [np.arange(60) * 0.4 + phase for phase in np.linspace(0, 6, 40)]
    arrays = [np.stack([np.sin(turn), np.cos(turn)], axis=1).astype(np.float32) for turn in turns]
    return save_episodes(tmp_path_factory.mktemp("waves") / "in", arrays)


@pytest.fixture(scope="module")
def shards(waves: str, build_here: BuildHere) -> str:
    output = Path(waves).parent / "out"
    build_here(waves, output, window_length=8, shift=2)
    return str(output)


def losses(example: str, *arguments: str) -> list[tuple[float, float]]:
    """(the loss, that of the best constant answer), of each process that tells them."""
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"loss (\d+\.\d+), of the best constant answer (\d+\.\d+)$", done.stdout, re.MULTILINE)
    return [(float(loss), float(constant)) for loss, constant in found]


def test_one_gpu_forecasts(tmp_path: Path, waves: str) -> None:
    ((loss, constant),) = losses("one_gpu.py", "--input", waves, "--folder", str(tmp_path), "--epochs", "3", "--mixed")
    assert loss < constant / 2
    assert constant == pytest.approx(1, abs=0.1)


def test_many_gpus_train_an_autoencoder(tmp_path: Path, waves: str) -> None:
    arguments = ["--input", waves, "--folder", str(tmp_path), "--epochs", "2", "--replicas", "2"]
    ((loss, constant),) = losses("many_gpus.py", *arguments)
    assert loss < constant / 2
    assert constant == pytest.approx(0.5, abs=0.05)


def test_many_workers_reach_the_same_loss(shards: str) -> None:
    first, second = losses("many_workers.py", shards, "--local", "2", "--epochs", "3")
    assert first == second
    assert first[0] < first[1] / 4


def test_a_custom_loop_goes_on_from_any_step_with_and_without_a_strategy(shards: str) -> None:
    for arguments in (["--start_step", "37"], ["--replicas", "2"]):
        ((loss, constant),) = losses("custom_loop.py", shards, "--steps", "100", *arguments)
        assert loss < constant / 10
