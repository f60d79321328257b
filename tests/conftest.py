"""What several test files share: episodes on disk, a dataset built in this process, and the windows it must hold."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from object_stores import S3, Gcs, gcs_emulator, s3_server
from pipeline import BuildOptions, DatasetPlan, plan
from pipeline.publish import publish
from pipeline.staging import read_task, stage_plan, task_places
from pipeline.write import write_shard
from shards import Dataset, open_dataset

SaveEpisodes = Callable[[Path, Sequence[np.ndarray] | Mapping[str, np.ndarray]], str]
BuildHere = Callable[..., Dataset]
PublishAndStop = Callable[[DatasetPlan, int], None]
WindowsOf = Callable[[Sequence[np.ndarray], int, int], dict[tuple[int, int], bytes]]


# Processes inherit what is ignored, as where the tests run behind `nohup` or `&`; and some are to be interrupted.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


def _save_episodes(folder: Path, arrays: Sequence[np.ndarray] | Mapping[str, np.ndarray]) -> str:
    """Save arrays as NAME.npy, or as e000.npy, e001.npy, ... when they have no names; returns the folder."""
    named = arrays if isinstance(arrays, Mapping) else {f"e{i:03d}": array for i, array in enumerate(arrays)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in named.items():
        file = folder / f"{name}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, array)
    return str(folder)


def _build_here(inputs: str, output: Path, **options: Any) -> Dataset:
    """Build a dataset in this process, without Beam: the plan is staged, and each shard written from it in turn."""
    planned = plan(BuildOptions(inputs=(inputs,), output=str(output), **options))
    stage_plan(planned)
    tasks = [read_task(planned.staging, place) for place in task_places(planned.staging)]
    done = [write_shard(planned.recipe, task) for task in tasks]
    publish(str(output), planned.staging, done, planned.manifest.fingerprint)
    return open_dataset(output)


def _windows_of(arrays: Sequence[np.ndarray], length: int, shift: int) -> dict[tuple[int, int], bytes]:
    """{(episode, first step): the bytes of the window}, of every window there is."""
    return {
        (episode, start): array[start : start + length].tobytes()
        for episode, array in enumerate(arrays)
        for start in range(0, len(array) - length + 1, shift)
    }


def _publish_and_stop(planned: DatasetPlan, moves: int) -> None:
    """Stage a plan, write its shards and begin to publish them: as a process that ends after so many moves of files."""
    stage_plan(planned)
    done = [write_shard(planned.recipe, read_task(planned.staging, place)) for place in task_places(planned.staging)]
    real, left = os.replace, [moves]

    def replace(source: str, target: str) -> None:
        if not source.endswith(".tmp"):  # what is under way to its own name in the staging folder is no move
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        real(source, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            publish(planned.output, planned.staging, done, planned.manifest.fingerprint)


@pytest.fixture(scope="session")
def publish_and_stop() -> PublishAndStop:
    return _publish_and_stop


@pytest.fixture(scope="session")
def save_episodes() -> SaveEpisodes:
    return _save_episodes


@pytest.fixture(scope="session")
def build_here() -> BuildHere:
    return _build_here


@pytest.fixture(scope="session")
def windows_of() -> WindowsOf:
    return _windows_of


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcs]:
    with gcs_emulator(tmp_path_factory.mktemp("gcs")) as running:
        yield running


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running
