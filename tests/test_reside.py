"""load(resident=True): the same batches as from the shards, or each replica its own part of them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import reader.capacity
from conftest import BuildHere, SaveEpisodes
from reader import Resume, load
from shards import OptionError

BATCH = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere) -> Path:
    """89 windows of 6 steps, some of which are not real, in 4 shards: batches of 8 leave one."""
    root, random = tmp_path_factory.mktemp("reside"), np.random.default_rng(0)
    arrays = [random.standard_normal((steps, 2)).astype(np.float32) for steps in (40, 31, 70, 52)]
    build_here(save_episodes(root / "in", arrays), root / "out", window_length=6, shift=2, num_shards=4, tail="pad")
    return root / "out"


def same(first: Any, second: Any) -> bool:
    firsts, seconds = list(first), list(second)
    return len(firsts) == len(seconds) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(firsts, seconds, strict=True)
    )


@pytest.mark.parametrize("resident", [True, "copy"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False, "remainder": "drop"},
        {"remainder": "repeat", "epochs": 3},
        {"normalize": True, "seed": 3, "start_step": 30, "epochs": 2},
        {"start_step": 5, "pool": 1},
    ],
)
def test_one_replica_gets_the_batches_that_the_shards_give(
    folder: Path, resident: Any, options: dict[str, Any]
) -> None:
    plain = load(folder, batch_size=BATCH, provenance=True, **options)
    held = load(folder, batch_size=BATCH, provenance=True, resident=resident, **options)
    assert (held.steps_per_epoch, held.course) == (plain.steps_per_epoch, plain.course)
    assert int(held.cardinality) == int(plain.cardinality())
    for _ in range(2):
        assert same(held, plain)
    for stream in (held, plain):
        stream.seek(4, 2)
    assert same(held, plain)


def test_targets_and_map_fn_are_made_on_the_device(folder: Path) -> None:
    how: dict[str, Any] = {"batch_size": BATCH, "map_fn": lambda b: b | {"window": -b["window"]}, "targets": 2}
    for held, plain in zip(load(folder, resident=True, **how), load(folder, **how), strict=True):
        assert len(held) == len(plain) == 3
        assert all(np.array_equal(a, b) for a, b in zip(held, plain, strict=True))


def test_endless_epochs_go_on(folder: Path) -> None:
    held = load(folder, batch_size=BATCH, epochs=None, resident=True)
    assert held.cardinality == -1
    for i, (batch, other) in enumerate(zip(held, load(folder, batch_size=BATCH, epochs=None), strict=False)):
        assert np.array_equal(batch["window"], other["window"])
        if i == 40:
            break


def test_keras_trains_and_resumes(folder: Path, tmp_path: Path) -> None:
    def trained(resident: bool, runs: list[int], run: Path) -> list[np.ndarray]:
        for epochs in runs:
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.layers.Input((6, 2)), keras.layers.Dense(2)])
            model.compile("adam", "mse")
            train = load(folder, batch_size=BATCH, targets=lambda b: (b["window"], b["window"]), resident=resident)
            model.fit(train, epochs=epochs, shuffle=False, verbose=0, callbacks=[Resume(run, train)])
        return model.get_weights()  # type: ignore[no-any-return]

    once, twice = trained(True, [4], tmp_path / "once"), trained(True, [2, 4], tmp_path / "twice")
    assert all(np.array_equal(a, b) for a, b in zip(once, twice, strict=True))
    plain = trained(False, [4], tmp_path / "plain")
    assert all(np.allclose(a, b, rtol=1e-5) for a, b in zip(once, plain, strict=True))


def test_what_does_not_fit_is_read_from_the_shards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.capacity, "free_bytes", lambda device: 1000)
    with pytest.warns(UserWarning, match=r"raw steps take 2.9 KiB, .*has 1000 B free: .* read from the shards"):
        stream = load(folder, batch_size=BATCH, resident=True)
    assert isinstance(stream, tf.data.Dataset)
    assert same(stream, load(folder, batch_size=BATCH))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resident": "all"}, "resident must be True, False or \"copy\", not 'all'"),
    ],
)
def test_wrong_options_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load(folder, batch_size=BATCH, **options)


CODE = """
import sys
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
from reader import load

folder = sys.argv[1]
strategy = tf.distribute.MirroredStrategy(["CPU:2", "CPU:3"])
how = {"batch_size": 8, "provenance": True, "seed": 2, "epochs": 2}


def replicas(batch):
    return strategy.experimental_local_results(batch["window"]), [
        np.stack([e, s], 1)
        for e, s in zip(*(strategy.experimental_local_results(batch[name]) for name in ("episode", "start")))
    ]


copies = load(folder, strategy=strategy, resident="copy", **how)
plain = load(folder, remainder="repeat", **how)
seen = [replicas(batch) for batch in copies]
print(len(seen), copies.steps_per_epoch, int(copies.cardinality))
print({tuple(window.device[-5:] for window in windows) for windows, _ in seen})
print(all(np.array_equal(np.concatenate(places), np.stack([b["episode"], b["start"]], 1))
          and np.array_equal(np.concatenate(windows), b["window"]) for (windows, places), b in zip(seen, plain)))
parts = load(folder, strategy=strategy, resident=True, **how)
first, second, met = [], [], [[], []]
for step, batch in enumerate(parts):
    _, (a, b) = replicas(batch)
    first.append(a), second.append(b)
    met[step // 12] += zip(map(tuple, a.tolist()), map(tuple, b.tolist()))
first, second = ({tuple(row) for row in np.concatenate(half).tolist()} for half in (first, second))
print(len(first), len(second), len(first | second), len(first & second))
print(len({(x, y) for x, y in met[0]} & {(x, y) for x, y in met[1]}) < 10)
print(max(first) <= min(second) or sorted(first)[-1][0] == sorted(second)[0][0])
parts.seek(1, 3)
later = [replicas(batch)[1] for batch in parts]
again = load(folder, strategy=strategy, resident=True, start_step=parts.steps_per_epoch + 3, **how)
pairs = [pair for one, batch in zip(later, again) for pair in zip(one, replicas(batch)[1])]
print(len(later), all(np.array_equal(x, y) for x, y in pairs))
one = tf.distribute.OneDeviceStrategy("CPU:1")
print({batch["window"].device[-5:] for batch in load(folder, strategy=one, resident=True, batch_size=8)})
"""


def test_replicas_hold_their_part_or_a_copy(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(folder)], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.stdout.splitlines() == [
        "24 12 24",
        "{('CPU:2', 'CPU:3')}",
        "True",
        "45 45 89 1",
        "True",
        "True",
        "21 True",
        "{'CPU:1'}",
    ], done.stderr
