"""Batches for the replicas of a strategy. `test_distribute.py` runs this in a process that has four devices."""

import gc
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere, SaveEpisodes
from reader import load
from reader.chunks import Chunks
from shards.errors import OptionError

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 4)

EPISODES = [35, 67]
WINDOWS = [(0, start) for start in range(32)] + [(1, start) for start in range(64)]
Step = list[list[tuple[int, int]]]  # of each replica, the (episode, start) of its windows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere) -> str:
    """96 windows of 4 steps of 2 values; window s of episode e begins with e + s / 100."""
    path = tmp_path_factory.mktemp("distribute")
    arrays = [np.float32(e) + np.arange(2 * n, dtype=np.float32).reshape(n, 2) / 200 for e, n in enumerate(EPISODES)]
    build_here(save_episodes(path / "in", arrays), path / "out", window_length=4, shift=1, num_shards={"train": 4})
    return str(path / "out")


@pytest.fixture(params=[1, 2, 4], ids=["one_device", "mirrored_2", "mirrored_4"], scope="module")
def strategy(request: pytest.FixtureRequest) -> tf.distribute.Strategy:
    return strategy_of(request.param)


@pytest.fixture(params=[1, 2], ids=["one_device", "mirrored_2"], scope="module")
def trainer(request: pytest.FixtureRequest) -> tf.distribute.Strategy:
    return strategy_of(request.param)


def strategy_of(replicas: int) -> tf.distribute.Strategy:
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("/device:CPU:1")
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def taken(batches: Iterable[Any], strategy: tf.distribute.Strategy | None = None) -> Iterator[Step]:
    """The windows of each step, replica by replica."""
    for batch in batches:
        local = strategy.experimental_local_results if strategy else lambda value: (value,)
        pairs = zip(local(batch["episode"]), local(batch["start"]), strict=True)
        yield [list(zip(e.numpy().tolist(), s.numpy().tolist(), strict=True)) for e, s in pairs]


def joined(steps: Iterable[Step]) -> list[list[tuple[int, int]]]:
    """The global batches: what the replicas got, one after the other."""
    return [flat(step) for step in steps]


def flat(parts: Iterable[Iterable[tuple[int, int]]]) -> list[tuple[int, int]]:
    return list(chain.from_iterable(parts))


def test_the_replicas_share_the_global_batches_of_one_device(folder: str, strategy: tf.distribute.Strategy) -> None:
    alone = load(folder, batch_size=8, seed=3, provenance=True)
    shared = load(folder, batch_size=8, seed=3, provenance=True, strategy=strategy)
    replicas = strategy.num_replicas_in_sync
    orders = []
    for _ in range(2):
        steps = list(taken(shared, strategy))
        assert [[len(part) for part in step] for step in steps] == [[8 // replicas] * replicas] * 12
        assert joined(steps) == joined(taken(alone))
        orders.append(flat(joined(steps)))
        assert sorted(orders[-1]) == WINDOWS
    assert orders[0] != orders[1]


def test_each_replica_gets_its_part_on_its_own_device(folder: str, strategy: tf.distribute.Strategy) -> None:
    local = strategy.experimental_local_results
    devices = [device.rpartition("/")[2] for device in strategy.extended.worker_devices]
    for batch in load(folder, batch_size=32, provenance=True, map_fn=lambda batch: batch, strategy=strategy):
        parts = {name: local(values) for name, values in batch.items()}
        assert {name: [part.device.rpartition("/")[2] for part in of] for name, of in parts.items()} == {
            "window": devices,
            "episode": devices,
            "start": devices,
        }
        for values, episode, start in zip(*parts.values(), strict=True):
            first = episode.numpy() + start.numpy() / 100
            np.testing.assert_allclose(values.numpy()[:, 0, 0], first, atol=1e-6)
    assert all(
        part.device.rpartition("/")[2] in devices
        for pair in islice(load(folder, batch_size=32, normalize=True, targets="same", strategy=strategy), 2)
        for value in pair
        for part in local(value)
    )


def test_its_cardinality_is_the_steps_of_an_iteration(folder: str, strategy: tf.distribute.Strategy) -> None:
    def cardinality(**options: Any) -> int:
        found = load(folder, strategy=strategy, **options).cardinality
        return int(found() if callable(found) else found)

    assert cardinality(batch_size=8) == 12
    assert cardinality(batch_size=8, epochs=3) == 36
    assert cardinality(batch_size=8, epochs=None) == tf.data.INFINITE_CARDINALITY
    assert cardinality(batch_size=40, remainder="drop") == 2
    assert cardinality(batch_size=40, remainder="repeat") == 3
    assert load(folder, strategy=strategy, batch_size=8, epochs=3).steps_per_epoch == 12


def test_what_is_no_full_batch_is_dropped_or_filled_up(folder: str, strategy: tf.distribute.Strategy) -> None:
    (order,) = joined(taken(load(folder, batch_size=96, seed=3, provenance=True)))

    def batches(remainder: Any) -> list[list[tuple[int, int]]]:
        options: dict[str, Any] = {"batch_size": 40, "remainder": remainder}
        return joined(taken(load(folder, seed=3, provenance=True, strategy=strategy, **options), strategy))

    assert batches("drop") == [order[:40], order[40:80]]
    assert batches("repeat") == [order[:40], order[40:80], order[80:] + order[:24]]
    assert batches(None) == batches("repeat")
    if strategy.num_replicas_in_sync == 1:
        assert batches("keep") == [order[:40], order[40:80], order[80:]]
    else:
        with pytest.raises(OptionError, match='unequal parts of the last 16 windows: choose "drop" or "repeat"'):
            batches("keep")


def test_fewer_windows_than_a_batch_are_repeated_until_it_is_full(
    folder: str, strategy: tf.distribute.Strategy
) -> None:
    (order,) = joined(taken(load(folder, batch_size=96, provenance=True)))
    options: dict[str, Any] = {"batch_size": 200, "remainder": "repeat", "provenance": True}
    assert joined(taken(load(folder, strategy=strategy, **options), strategy)) == [order + order + order[:8]]


def test_a_batch_that_replicas_cannot_share_is_refused(folder: str) -> None:
    three = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    with pytest.raises(OptionError, match=r"batch_size=8 .* 3 replicas cannot share it equally: .* multiple of 3"):
        load(folder, batch_size=8, strategy=three)
    with pytest.raises(OptionError, match=r"strategy must be a tf\.distribute\.Strategy, not 'mirrored'"):
        load(folder, batch_size=8, strategy="mirrored")  # type: ignore[arg-type]


def test_a_stream_that_begins_at_a_step_is_the_unbroken_one_from_there_on(
    folder: str, trainer: tf.distribute.Strategy
) -> None:
    options: dict[str, Any] = {"batch_size": 8, "seed": 3, "provenance": True}
    unbroken = joined(islice(taken(load(folder, epochs=None, **options)), 40))  # 12 steps an epoch
    assert sorted(flat(unbroken[12:24])) == WINDOWS
    assert unbroken[:12] != unbroken[12:24]
    for n in (5, 29):
        endless = load(folder, epochs=None, start_step=n, strategy=trainer, **options)
        assert joined(islice(taken(endless, trainer), 40 - n)) == unbroken[n:]
    by_epochs = load(folder, start_step=5, strategy=trainer, **options)
    assert joined(taken(by_epochs, trainer)) == unbroken[5:12]
    assert joined(taken(by_epochs, trainer)) == unbroken[12:24]
    by_epochs.seek(1, 3)
    assert joined(taken(by_epochs, trainer)) == unbroken[15:24]


def test_windows_read_one_by_one_and_unshuffled_ones_are_shared_alike(
    folder: str, trainer: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for large, shuffle in ((0, True), (0, False), (2**14, False)):
        monkeypatch.setattr("reader.stream.LARGE_BYTES", large)
        options = {"batch_size": 16, "provenance": True, "shuffle": shuffle}
        shared = taken(load(folder, strategy=trainer, **options), trainer)
        assert joined(shared) == joined(taken(load(folder, **options)))
    assert flat(joined(taken(load(folder, batch_size=8, shuffle=False, provenance=True)))) == WINDOWS


def compiled(strategy: tf.distribute.Strategy, rate: float = 0.02, **how: Any) -> keras.Model:
    keras.utils.set_random_seed(1)  # some first weights are nearly right, and their loss need not fall
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4, 2)), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse", **how)
    return model


def number_of_episode(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return batch["window"], tf.cast(batch["episode"], tf.float32)[:, tf.newaxis]


def test_keras_trains_and_evaluates(folder: str, trainer: tf.distribute.Strategy) -> None:
    """The target is the number of the episode, which the values tell: the best constant answer has a loss of 2 / 9."""
    options: dict[str, Any] = {"batch_size": 8, "provenance": True, "targets": number_of_episode, "strategy": trainer}
    model, steps = compiled(trainer), []
    counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    losses = model.fit(load(folder, **options), epochs=2, shuffle=False, verbose=0, callbacks=[counting]).history
    assert steps == 2 * list(range(12))
    assert losses["loss"][1] < losses["loss"][0]
    assert model.evaluate(load(folder, shuffle=False, **options), verbose=0) < 0.2


def test_keras_trains_with_the_epochs_it_is_told_to(folder: str, trainer: tf.distribute.Strategy) -> None:
    """Untold, it would begin with another: before, it takes a batch of an iteration of its own to build the model."""
    options: dict[str, Any] = {"batch_size": 40, "remainder": "drop", "targets": lambda batch: (batch["window"], 0.0)}
    model = compiled(trainer, rate=0.0)
    alone = load(folder, **{**options, "targets": None})
    losses = [np.mean([np.mean(model(batch["window"]) ** 2) for batch in alone]) for _ in range(3)]
    assert len({f"{loss:.4g}" for loss in losses}) == 3  # however small the first weights make them
    train = load(folder, strategy=trainer, **options)
    told = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: train.seek(epoch))
    found = model.fit(train, epochs=3, shuffle=False, verbose=0, callbacks=[told]).history["loss"]
    assert found == pytest.approx(losses, rel=1e-4)


def test_keras_trains_in_mixed_precision_and_compiled_by_xla(folder: str, trainer: tf.distribute.Strategy) -> None:
    alone = trainer.num_replicas_in_sync == 1  # XLA compiles no step of several replicas
    if alone:
        trainer = tf.distribute.OneDeviceStrategy("CPU:0")
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = compiled(trainer, jit_compile=alone)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    train = load(folder, batch_size=8, strategy=trainer, provenance=True, targets=number_of_episode)
    losses = model.fit(train, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses[1] < losses[0]


def test_a_loop_of_ones_own_trains(folder: str, trainer: tf.distribute.Strategy) -> None:
    """All steps of an epoch within one tf.function, the work of each replica compiled by XLA."""
    with trainer.scope():
        weight = tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def gradient(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x * weight - 3 * y) ** 2)
        return loss, tape.gradient(loss, weight)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss, grad = gradient(x, y)
        weight.assign_sub(0.5 * tf.distribute.get_replica_context().all_reduce("MEAN", grad))
        return loss

    @tf.function
    def train(batches: Any, steps: tf.Tensor) -> tf.Tensor:
        loss = 0.0
        for _ in tf.range(steps):
            loss = trainer.reduce("MEAN", trainer.run(replica_step, args=next(batches)), axis=None)
        return loss

    batches = iter(load(folder, batch_size=8, targets="same", epochs=None, strategy=trainer))
    first = float(train(batches, tf.constant(1)))
    assert float(train(batches, tf.constant(30))) < first / 10  # beyond the end of two epochs
    assert float(weight.numpy()) == pytest.approx(3, abs=0.1)
    assert train.experimental_get_tracing_count() == 1


def test_iterations_may_be_abandoned_and_run_side_by_side(folder: str) -> None:
    trainer = strategy_of(2)

    def threads() -> int:
        gc.collect()
        return len(list(Path("/proc/self/task").iterdir()))

    def chunks() -> int:
        gc.collect()
        return sum(isinstance(found, Chunks) for found in gc.get_objects())

    options: dict[str, Any] = {"batch_size": 8, "provenance": True, "strategy": trainer}
    before = chunks()
    one, two = load(folder, seed=1, **options), load(folder, seed=2, **options)
    alone = joined(islice(taken(load(folder, seed=1, batch_size=8, provenance=True, epochs=None)), 24))
    for epoch in range(2):
        assert joined(islice(taken(one, trainer), 5)) == alone[12 * epoch : 12 * epoch + 5]
    some = threads()
    pairs = zip(taken(one, trainer), taken(two, trainer), taken(one, trainer), strict=True)
    for steps in zip(*pairs, strict=True):
        assert sorted(flat(joined(steps))) == WINDOWS
    for _ in range(3):
        list(islice(one, 2))
    assert threads() <= some + 4
    del one, two, pairs
    assert chunks() == before
