"""Every kind of episode and window, from files through build, `open_dataset` and `load`, against brute force."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import BuildHere, SaveEpisodes
from reader import load
from shards import Dataset

Window = tuple[int, list[int]]  # its first step, and the steps that it really holds


def brute_force(steps: int, length: int, shift: int, stride: int, tail: str) -> list[Window]:
    """The definition, in a few lines."""
    extent = (length - 1) * stride + 1
    full = [[i + k * stride for k in range(length)] for i in range(0, steps, shift) if i + extent <= steps]
    end, following = (full[-1][-1] + 1 if full else 0), len(full) * shift
    if tail == "pad" and end < steps and following < steps:
        full.append([following + k * stride for k in range(length) if following + k * stride < steps])
    if tail == "align" and steps >= extent and end < steps:
        full.append([steps - extent + k * stride for k in range(length)])
    return [(window[0], window) for window in full]


def expected(arrays: Sequence[np.ndarray], length: int, **options: Any) -> dict[tuple[int, int], tuple[bytes, int]]:
    """{(episode, first step): (the bytes of the window, how many of its steps are real)}."""
    windows = {}
    for episode, array in enumerate(arrays):
        for start, held in brute_force(len(array), length, **options):
            window = np.zeros((length, *array.shape[1:]), array.dtype)
            window[: len(held)] = array[held]
            windows[episode, start] = window.tobytes(), len(held)
    return windows


def opened(dataset: Dataset, feature: str = "window") -> dict[tuple[int, int], tuple[bytes, int]]:
    found = {}
    for split in dataset.values():
        where, values = split.provenance(), split[:]
        lengths = values.get("valid", np.full(len(split), dataset.manifest.window.length))
        for key, value, valid in zip(keys(where), values[feature], lengths.tolist(), strict=True):
            assert key not in found
            found[key] = value.tobytes(), valid
    return found


def streamed(folder: Path, dataset: Dataset, **options: Any) -> Iterator[tuple[tuple[int, int], tuple[bytes, int]]]:
    for split in dataset:
        for batch in load(folder, split, batch_size=7, provenance=True, **options).as_numpy_iterator():
            mask = batch.get("mask", np.ones(batch["window"].shape[:2], bool))
            for key, value, real in zip(keys(batch), batch["window"], mask, strict=True):
                assert real[: real.sum()].all()
                yield key, (value.tobytes(), int(real.sum()))


def keys(where: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(where["episode"].tolist(), where["start"].tolist(), strict=True))


def episodes(lengths: Sequence[int], step_shape: tuple[int, ...] = (2,), dtype: str = "int16") -> list[np.ndarray]:
    random = np.random.default_rng(sum(lengths))
    return [random.integers(1, 30_000, (steps, *step_shape)).astype(dtype) for steps in lengths]


options = {
    "length": st.integers(1, 7),
    "shift": st.integers(1, 9),
    "stride": st.integers(1, 4),
    "tail": st.sampled_from(["drop", "pad", "align"]),
    "per_record": st.one_of(st.integers(1, 6), st.just("auto")),
}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6), shards=st.integers(1, 3), **options)
def test_every_window_is_there_once_as_the_definition_has_it(
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    shards: int,
    length: int,
    shift: int,
    stride: int,
    tail: str,
    per_record: int | str,
) -> None:
    arrays = episodes(lengths)
    windows = expected(arrays, length, shift=shift, stride=stride, tail=tail)
    if not windows:
        return
    folder = tmp_path_factory.mktemp("round")
    dataset = build_here(
        save_episodes(folder / "in", arrays),
        folder / "out",
        window_length=length,
        shift=shift,
        stride=stride,
        tail=tail,
        windows_per_record=per_record,
        num_shards=shards if shards == 1 else None,
    )
    assert opened(dataset) == windows
    assert dataset.manifest.windows == len(windows)
    covered = {
        (episode, step)
        for episode, array in enumerate(arrays)
        for _, held in brute_force(len(array), length, shift, stride, tail)
        for step in held
    }
    (statistics,) = dataset.manifest.statistics
    assert statistics.total.count == 2 * len(covered)
    values = np.array([arrays[episode][step] for episode, step in sorted(covered)], np.float64)
    assert [part.mean for part in statistics.components] == pytest.approx(values.mean(0), rel=1e-12)
    assert [part.std for part in statistics.components] == pytest.approx(values.std(0), rel=1e-9, abs=1e-9)
    assert [part.max for part in statistics.components] == values.max(0).tolist()
    used = sum(len(arrays[episode]) for episode in {episode for episode, _ in windows})
    assert dataset.manifest.source.uncovered == used - len(covered)


@pytest.mark.parametrize("tail", ["drop", "pad", "align"])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("per_record", [1, 4, "auto"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_stream_delivers_the_same_windows(
    save_episodes: SaveEpisodes,
    build_here: BuildHere,
    tmp_path: Path,
    tail: str,
    stride: int,
    per_record: int | str,
    shuffle: bool,
) -> None:
    arrays = episodes([50, 3, 17, 31, 64], dtype="float32")
    how = {"shift": 3, "stride": stride, "tail": tail}
    dataset = build_here(
        save_episodes(tmp_path / "in", arrays),
        tmp_path / "out",
        window_length=6,
        windows_per_record=per_record,
        num_shards=2,
        **how,
    )
    stream = list(streamed(tmp_path / "out", dataset, shuffle=shuffle))
    assert dict(stream) == expected(arrays, 6, **how)
    assert len(stream) == dataset.manifest.windows
    if not shuffle:
        assert [key for key, _ in stream] == sorted(key for key, _ in stream)
    assert sum(1 for _ in load(tmp_path / "out", batch_size=7)) == -(-len(stream) // 7)
