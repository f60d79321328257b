"""How well batches are mixed: as draws from the whole split would be, also where records hold several windows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import BuildHere, SaveEpisodes
from reader import load

EPISODES, STEPS, LENGTH, BATCH = 150, 200, 10, 128
STARTS = STEPS - LENGTH + 1
WINDOWS = EPISODES * STARTS
PER_RECORD = [1, 8, "auto"]


@dataclass(frozen=True)
class Mix:
    """Of the batches of some epochs, on average: what a batch holds."""

    episodes: float  # different ones
    apart: float  # steps between the starts of two windows
    neighbours: float  # pairs of windows of one episode that share a step


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes) -> str:
    return save_episodes(tmp_path_factory.mktemp("shuffle") / "in", [np.zeros(STEPS, np.uint8)] * EPISODES)


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, build_here: BuildHere, inputs: str
) -> dict[tuple[Any, int], Path]:
    root = tmp_path_factory.mktemp("shuffled")
    how = {"window_length": LENGTH, "shift": 1}
    folders = {(per_record, shards): root / f"{per_record}-{shards}" for per_record in PER_RECORD for shards in (4, 32)}
    for (per_record, shards), folder in folders.items():
        build_here(inputs, folder, windows_per_record=per_record, num_shards=shards, **how)
    return folders


def orders(folder: Path, epochs: int, **options: Any) -> list[np.ndarray]:
    """(windows, 2) of each epoch: episode and start."""
    dataset = load(folder, batch_size=BATCH, provenance=True, **options)
    return [
        np.concatenate([np.stack([batch["episode"], batch["start"]], 1) for batch in dataset.as_numpy_iterator()])
        for _ in range(epochs)
    ]


def mix(epochs: list[np.ndarray]) -> Mix:
    first, second = np.triu_indices(BATCH, 1)
    found = []
    for epoch in epochs:
        for batch in epoch[: WINDOWS // BATCH * BATCH].reshape(-1, BATCH, 2):
            episode, start = batch[:, 0], batch[:, 1]
            apart = np.abs(start[first] - start[second])
            near = (episode[first] == episode[second]) & (apart < LENGTH)
            found.append((len(np.unique(episode)), apart.mean(), near.sum()))
    return Mix(*np.mean(found, axis=0))


@pytest.fixture(scope="module")
def uniform() -> Mix:
    """Of perfect draws without replacement, by arithmetic."""
    others = WINDOWS - STARTS - np.arange(BATCH)
    episodes = EPISODES * (1 - float(np.prod(others / (WINDOWS - np.arange(BATCH)))))
    starts = np.arange(STARTS)
    distance = np.abs(starts[:, np.newaxis] - starts)
    apart = EPISODES**2 * distance.sum() / (WINDOWS * (WINDOWS - 1))
    near = ((distance < LENGTH) & (distance > 0)).sum() * EPISODES / (WINDOWS * (WINDOWS - 1))
    return Mix(episodes, apart, near * BATCH * (BATCH - 1) / 2)


@pytest.mark.parametrize("per_record", PER_RECORD)
def test_batches_are_as_uniform_draws_where_all_shards_are_shuffled_together(
    folders: dict[tuple[Any, int], Path], uniform: Mix, per_record: Any
) -> None:
    found = mix(orders(folders[per_record, 4], epochs=3))
    assert found.episodes == pytest.approx(uniform.episodes, rel=0.01)
    assert found.apart == pytest.approx(uniform.apart, rel=0.01)
    assert found.neighbours == pytest.approx(uniform.neighbours, rel=0.05)


def test_batches_are_nearly_so_where_a_pool_is_half_of_the_shards(
    folders: dict[tuple[Any, int], Path], uniform: Mix
) -> None:
    single, shared = (mix(orders(folders[per_record, 32], epochs=3, pool=16)) for per_record in (1, 8))
    for found in (single, shared):
        assert found.episodes == pytest.approx(uniform.episodes, rel=0.03)
        assert found.apart == pytest.approx(uniform.apart, rel=0.01)
    assert shared.neighbours <= 1.02 * single.neighbours < 2 * uniform.neighbours


@pytest.mark.parametrize("per_record", PER_RECORD)
@pytest.mark.parametrize("shards", [4, 32])
def test_epochs_hold_every_window_once_and_differ(
    folders: dict[tuple[Any, int], Path], per_record: Any, shards: int
) -> None:
    folder = folders[per_record, shards]
    first, again, other = orders(folder, 2), orders(folder, 2), orders(folder, 2, seed=1)
    expected = np.stack([np.repeat(np.arange(EPISODES), STARTS), np.tile(np.arange(STARTS), EPISODES)], 1)
    for epoch in (*first, *other):
        assert np.array_equal(epoch[np.lexsort((epoch[:, 1], epoch[:, 0]))], expected)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    epochs = [*first, *other]
    for i, a in enumerate(epochs):
        for b in epochs[:i]:
            assert (a == b).all(1).mean() < 0.001  # as many windows in the same place as chance has it


@pytest.mark.parametrize("per_record", PER_RECORD)
def test_windows_of_one_record_are_no_neighbours_in_the_stream(
    folders: dict[tuple[Any, int], Path], per_record: Any
) -> None:
    (epoch,) = orders(folders[per_record, 4], 1)
    same = np.diff(epoch[:, 0]) == 0
    assert same.mean() == pytest.approx(1 / EPISODES, rel=0.15)
    assert np.abs(np.diff(epoch[:, 1])).mean() == pytest.approx(STARTS / 3, rel=0.02)
