"""The examples, run as their docstrings say, on small data of known answers."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from conftest import SaveEpisodes

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
