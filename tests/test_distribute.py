"""Batches for many replicas and many workers, in processes of their own: devices and workers are set up only once."""

import json
import os
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from reader import load

TESTS = Path(__file__).parent
WRONG = ("AutoShard", "AUTO_SHARD", "ran out of data", "Traceback")


def test_replicas_on_devices_of_one_machine() -> None:
    """The tests in `on_replicas.py`."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-s", str(TESTS / "on_replicas.py")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = set(WRONG) - {"Traceback"}  # of TensorFlow's log, where streams were abandoned
    assert [word for word in wrong if word in done.stdout + done.stderr] == [], done.stderr


def on_workers(workers: int, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Run `on_worker.py` as so many workers at once; the last argument has {} for the number of the worker."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
    cluster = {"worker": [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]}
    for each in sockets:
        each.close()
    processes = []
    try:
        for index in range(workers):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            command = [sys.executable, str(TESTS / "on_worker.py"), *(text.format(index) for text in arguments)]
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"TF_CONFIG": config},
            )
            processes.append(process)
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process, output in zip(processes, outputs, strict=True)
    ]


def windows(folder: str, count: int, **options: Any) -> np.ndarray:
    """The (episode, start) of the windows of `count` steps of one process, (steps, B, 2)."""
    batches = islice(load(folder, seed=3, provenance=True, epochs=None, **options), count)
    return np.stack([np.stack([batch["episode"], batch["start"]], axis=1) for batch in batches])


def test_two_workers(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    arrays = [np.float32(e) + np.arange(2 * n, dtype=np.float32).reshape(n, 2) / 200 for e, n in enumerate([35, 67])]
    inputs = save_episodes(tmp_path / "in", arrays)
    for shards in (4, 1):
        build_here(inputs, tmp_path / str(shards), window_length=4, shift=1, num_shards={"train": shards})
    four, one = str(tmp_path / "4"), str(tmp_path / "1")
    for done in on_workers(2, four, one, str(tmp_path / "{}.npz")):
        assert done.returncode == 0, done.stderr
        assert [word for word in WRONG if word in done.stdout + done.stderr] == [], done.stderr
    first, second = (np.load(tmp_path / f"{index}.npz") for index in range(2))
    everything = {(0, start) for start in range(32)} | {(1, start) for start in range(64)}

    def together(name: str) -> np.ndarray:
        """The global batches, of which the first worker has the first half."""
        assert first[name].shape == second[name].shape
        return np.concatenate([first[name], second[name]], axis=1)

    def parts(name: str, begin: int, end: int) -> tuple[set[tuple[int, int]], ...]:
        return tuple({tuple(window) for window in each[name][begin:end].reshape(-1, 2).tolist()}
                     for each in (first, second))  # fmt: skip

    for name, folder, steps in (("equal", four, 24), ("one_shard", one, 12)):
        np.testing.assert_array_equal(together(name), windows(folder, steps, batch_size=8))
        for begin in range(0, steps, 12):
            mine, others = parts(name, begin, begin + 12)
            assert len(mine) == len(others) == 48
            assert mine | others == everything
    np.testing.assert_array_equal(together("later"), windows(four, 24, batch_size=8)[5:])
    np.testing.assert_array_equal(together("drop"), windows(four, 4, batch_size=40, remainder="drop"))
    np.testing.assert_array_equal(together("repeat"), windows(four, 3, batch_size=40, remainder="repeat"))
    np.testing.assert_array_equal(together("repeat")[2, 16:], together("repeat")[0, :24])
    np.testing.assert_array_equal(together("endless"), windows(four, 100, batch_size=40, remainder="repeat"))

    assert "2 replicas unequal parts of the last 16 windows" in str(first["refused"])
    np.testing.assert_array_equal(first["trained"], second["trained"])
    *losses, weight = first["trained"]
    assert losses[2] < losses[0] / 10
    assert weight == pytest.approx(3, abs=0.1)
