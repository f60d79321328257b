"""Training that is killed and run again: it ends as if nothing had happened, or says why it cannot go on."""

import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere, SaveEpisodes
from reader.epochs import Course
from shards import OptionError

EXAMPLE = Path(__file__).parent.parent / "examples" / "resume.py"
EPOCHS, STEPS = 3, 22
PROCESSES = multiprocessing.get_context("forkserver")  # each begins with TensorFlow imported, but not yet in use
PROCESSES.set_forkserver_preload(["tensorflow", "keras"])


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory, save_episodes: SaveEpisodes, build_here: BuildHere) -> str:
    """175 windows to train with, which make 22 steps, and 84 others."""
    folder, random = tmp_path_factory.mktemp("resume"), np.random.default_rng(0)
    inputs = save_episodes(folder / "in", [random.standard_normal((s, 2)).astype(np.float32) for s in (91, 91, 98)])
    splits = {"train": "0.67", "test": "0.33"}
    dataset = build_here(inputs, folder / "out", window_length=8, shift=1, splits=splits, num_shards={"train": 5})
    assert {name: len(split) for name, split in dataset.items()} == {"train": 175, "test": 84}
    return str(folder / "out")


class Death(keras.callbacks.Callback):
    """The process is killed so many seconds after so many steps."""

    def __init__(self, steps: int, seconds: float) -> None:
        super().__init__()
        self.steps, self.seconds = steps, seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps -= 1
        if self.steps == 0:
            threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        time.sleep(0.001)


def train(windows: str, run: Path, every: int, execution: int, mirrored: bool, death: tuple[int, float] | None) -> None:
    """The training in question, in a process of its own; a file beside `run` gets the weights and the history."""
    warnings.simplefilter("error")
    strategy = None
    if mirrored:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    tf.config.experimental.enable_op_determinism()
    from reader import Resume, load

    keras.utils.set_random_seed(3)
    layers = keras.layers
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential(
            [
                layers.Dense(8, activation="relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3, seed=4),
                layers.Dense(2),
            ]
        )
        decay = keras.optimizers.schedules.CosineDecay(0.01, STEPS * EPOCHS)
        model.compile(keras.optimizers.Adam(decay), "mse", metrics=["mae"], steps_per_execution=execution)
    data = load(windows, batch_size=8, targets="same", remainder="repeat", strategy=strategy)
    test = None if mirrored else load(windows, "test", batch_size=8, shuffle=False, targets="same")
    resume = Resume(run, data, every=every)
    callbacks = [resume] if death is None else [Death(*death), resume]
    done = model.fit(data, epochs=EPOCHS, validation_data=test, shuffle=False, callbacks=callbacks, verbose=0)
    parts = [part for v in model.variables for part in getattr(v.value, "values", [v.value])]  # of each replica
    weights = b"".join(v.numpy().tobytes() for v in [*parts, *model.optimizer.variables])
    told = sha256(weights).hexdigest(), done.history, done.epoch, resume.began
    run.with_suffix(".pickle").write_bytes(pickle.dumps(told))


def in_process(*options: Any) -> int | None:
    process = PROCESSES.Process(target=train, args=options)
    process.start()
    process.join(100)
    return process.exitcode


@pytest.mark.parametrize(
    ("execution", "every", "mirrored", "deaths"),
    [(1, 1, False, [(9, 0.02), (20, 0.05)]), (4, 5, False, [(8, 0.01)]), (1, 3, True, [(30, 0.02)])],
    ids=["steps", "executions", "replicas"],
)
def test_training_that_was_killed_ends_like_one_that_was_not(
    windows: str, tmp_path: Path, execution: int, every: int, mirrored: bool, deaths: list[tuple[int, float]]
) -> None:
    assert in_process(windows, tmp_path / "whole", every, execution, mirrored, None) == 0
    for death in deaths:
        assert in_process(windows, tmp_path / "killed", every, execution, mirrored, death) == -signal.SIGKILL
    assert in_process(windows, tmp_path / "killed", every, execution, mirrored, None) == 0
    whole, history, epochs, began = pickle.loads((tmp_path / "whole.pickle").read_bytes())
    killed, since, those, where = pickle.loads((tmp_path / "killed.pickle").read_bytes())
    assert killed == whole
    assert epochs == [0, 1, 2]
    assert began is None
    assert where is not None
    assert where > (0, 0)
    assert those == epochs[where[0] :]
    assert since == {name: values[where[0] :] for name, values in history.items()}  # exactly
    files = [re.sub("[0-9]+", "N", file.name) for file in sorted((tmp_path / "killed").iterdir())]
    assert files == ["checkpoint", "ckpt-N.data-N-of-N", "ckpt-N.index"]


def test_training_goes_on_with_another_number_of_replicas(windows: str, tmp_path: Path) -> None:
    assert in_process(windows, tmp_path / "run", 1, 1, True, (30, 0.0)) == -signal.SIGKILL
    assert in_process(windows, tmp_path / "run", 1, 1, False, None) == 0
    _, history, epochs, (epoch, step) = pickle.loads((tmp_path / "run.pickle").read_bytes())
    numbers = [re.findall("[0-9]+", file.name)[0] for file in (tmp_path / "run").glob("ckpt-*.index")]
    assert numbers == ["66"]  # the first saved after it went on took no name of one saved before
    assert epoch == 1
    assert step >= 6
    assert epochs == [1, 2]
    assert all(0 < loss < 2 for loss in history["loss"])


class StopError(Exception):
    pass


class Stop(keras.callbacks.Callback):
    """Fails, or only stops, after this step of this epoch."""

    def __init__(self, epoch: int, step: int, fail: bool = True) -> None:
        super().__init__()
        self.at, self.fail, self.epoch = (epoch, step), fail, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch + 1) == self.at:
            if self.fail:
                raise StopError
            self.model.stop_training = True


def tiny(values: int = 2, seen: list[Any] | None = None) -> keras.Model:
    """A model that shows what it is trained with."""

    class Tiny(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            if seen is not None:
                seen.append(y.numpy().tolist())
            return super().train_step((x, x))

    model = Tiny([keras.layers.Dense(values)])
    model.compile("sgd", "mse", run_eagerly=seen is not None)
    return model


def window_and_start(batch: Any) -> Any:
    return batch["window"], batch["start"]


def stream(windows: str, **options: Any) -> Any:
    from reader import load

    return load(windows, batch_size=8, targets=window_and_start, provenance=True, **options)


def fit(model: keras.Model, data: Any, run: Path, *callbacks: Any, every: int | None = None, **options: Any) -> Any:
    from reader import Resume

    resume = Resume(run, data, every)
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0} | options
    with contextlib.suppress(StopError):
        model.fit(data, callbacks=[*callbacks, resume], **options)
    return resume


def test_the_batches_after_a_stop_are_those_that_would_have_come(windows: str, tmp_path: Path) -> None:
    data = stream(windows)
    expected = [batch[1].numpy().tolist() for _ in range(EPOCHS) for batch in data]
    whole: list[Any] = []
    fit(tiny(seen=whole), data, tmp_path / "whole")  # whatever was iterated before
    assert whole == expected
    seen: list[Any] = []
    fit(tiny(seen=seen), stream(windows), tmp_path / "run", Stop(1, 8), every=5)
    again: list[Any] = []
    resume = fit(tiny(seen=again), stream(windows), tmp_path / "run")
    assert resume.began == (1, 5)
    assert seen[: STEPS + 5] + again == expected


def test_only_at_the_end_of_epochs_unless_asked(windows: str, tmp_path: Path) -> None:
    fit(tiny(), stream(windows), tmp_path, Stop(1, 21))
    assert fit(tiny(), stream(windows), tmp_path, Stop(1, 1)).began == (1, 0)


def test_the_last_step_of_an_epoch_is_saved_with_its_end(windows: str, tmp_path: Path) -> None:
    fit(tiny(), stream(windows), tmp_path, Stop(0, 22), every=11)  # what follows the step is lost
    epochs: list[int] = []
    told = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    assert fit(tiny(), stream(windows), tmp_path, told, every=11).began == (0, 11)
    assert epochs == [0, 1, 2]


def test_training_that_is_done_returns_at_once_and_may_be_prolonged(windows: str, tmp_path: Path) -> None:
    first, second = tiny(), tiny()
    fit(first, stream(windows), tmp_path)
    assert fit(second, stream(windows), tmp_path).began == (3, 0)
    assert second.history.history == {}
    for one, other in zip(first.variables, second.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    assert fit(second, stream(windows), tmp_path, epochs=4).model.history.epoch == [3]
    second.fit(stream(windows), epochs=1, shuffle=False, verbose=0)  # without Resume, from the start
    assert second.history.epoch == [0]


def test_training_that_another_callback_stops_goes_on_there(windows: str, tmp_path: Path) -> None:
    fit(tiny(), stream(windows), tmp_path, Stop(1, 7, fail=False))
    assert fit(tiny(), stream(windows), tmp_path).began == (1, 7)


def test_steps_that_fit_was_given_are_those_of_the_stream(windows: str, tmp_path: Path) -> None:
    fit(tiny(), stream(windows), tmp_path, Stop(0, 9), every=4)
    seen: list[Any] = []
    fit(tiny(seen=seen), stream(windows), tmp_path, steps_per_epoch=STEPS)
    assert len(seen) == EPOCHS * STEPS - 8


def test_only_the_warning_of_the_epoch_that_was_broken_is_withheld(windows: str, tmp_path: Path) -> None:
    from reader import load

    fit(tiny(), stream(windows), tmp_path, Stop(0, 9), every=4)
    test = load(windows, "test", batch_size=8, targets="same")
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        fit(tiny(), stream(windows), tmp_path, validation_data=test, validation_steps=99, epochs=1)


def test_what_a_killed_save_left_is_removed(windows: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.tmp0123").write_text("")
    (tmp_path / "ckpt-1_temp").mkdir()
    (tmp_path / "ckpt-1_temp" / "part-00000-of-00001.data-00000-of-00001.tempstate123").write_text("")
    (tmp_path / "ckpt-1.data-00000-of-00001").write_text("half")
    fit(tiny(), stream(windows), tmp_path, epochs=1)
    files = [file.name for file in sorted(tmp_path.iterdir())]
    assert files == ["checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index"]


def test_optimizers_of_the_users_own_are_saved_too(windows: str, tmp_path: Path) -> None:
    def two(build: bool = True) -> keras.Model:
        model = tiny()
        model.build((None, 8, 2))
        model.other = keras.optimizers.Adam()
        if build:
            model.other.build(model.trainable_variables)
        return model

    first, second = two(), two()
    first.other.iterations.assign(5)
    fit(first, stream(windows), tmp_path, epochs=1)
    fit(second, stream(windows), tmp_path, epochs=1)
    assert int(second.other.iterations) == 5
    with pytest.raises(OptionError, match=re.escape("call optimizer.build(variables) before fit")):
        fit(two(build=False), stream(windows), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folder": ""}, "folder must be the path of a folder for checkpoints, not ''"),
        ({"every": 0}, "every must be a whole number of steps, 1 or more, or None, not 0"),
        ({"every": True}, "every must be a whole number of steps, 1 or more, or None, not True"),
        ({"every": 2.5}, "every must be a whole number of steps, 1 or more, or None, not 2.5"),
        ({"train": [1]}, "train must be what load returned, not [1]: only that can begin at any step."),
        (
            {"train": SimpleNamespace(seek=None, course=Course(3, 2, ""))},
            "train has epochs=2 in one iteration, but fit iterates once for each epoch: leave out epochs in load",
        ),
    ],
)
def test_options_that_cannot_be(windows: str, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    from reader import Resume

    with pytest.raises(OptionError, match=re.escape(message)):
        Resume(**{"folder": tmp_path, "train": stream(windows)} | change)


def test_a_checkpoint_of_something_else_is_refused(windows: str, tmp_path: Path) -> None:
    fit(tiny(), stream(windows), tmp_path / "run", epochs=1)
    before = (tmp_path / "run" / "checkpoint").read_text()
    another = f"or choose another folder than {tmp_path / 'run'}, which holds the checkpoint of another training"
    message = (
        "it has tiny/dense/kernel (2, 1) float32 where there was tiny/dense/kernel (2, 2) float32. Make and compile"
    )
    with pytest.raises(OptionError, match=re.escape(message)):
        fit(tiny(values=1), stream(windows, features=["window"]), tmp_path / "run")
    deeper = tiny()
    deeper.add(keras.layers.Dense(2))
    message = (
        "the model differs from that of the checkpoint: it has tiny/dense/kernel (2, 2) float32 where there was sgd/"
    )
    with pytest.raises(OptionError, match=re.escape(message)):
        fit(deeper, stream(windows), tmp_path / "run")
    same = "the stream differs from that of the checkpoint: it is dataset=[0-9a-f]{16} split=train batch_size=8"
    with pytest.raises(OptionError, match=f"{same} remainder=drop seed=0 pool=64, and was .* remainder=keep seed=0"):
        fit(tiny(), stream(windows, remainder="drop"), tmp_path / "run")
    with pytest.raises(OptionError, match=f"{same} remainder=keep seed=5 pool=64, and was .*seed=0 pool=64") as caught:
        fit(tiny(), stream(windows, seed=5), tmp_path / "run")
    assert another in str(caught.value)
    assert (tmp_path / "run" / "checkpoint").read_text() == before


def test_a_model_that_no_batch_builds_is_refused(windows: str, tmp_path: Path) -> None:
    class Odd(keras.Model):
        def call(self, x: Any) -> Any:
            raise KeyError("x")

    model = Odd()
    model.compile("sgd", "mse")
    with pytest.raises(OptionError, match="the model cannot be built: call it on a batch before fit"):
        fit(model, stream(windows), tmp_path)


def test_a_folder_of_other_checkpoints_is_refused(windows: str, tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(step=tf.Variable(3))
    tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=1).save()
    with pytest.raises(OptionError, match="is no checkpoint that Resume can read: choose another folder"):
        fit(tiny(), stream(windows), tmp_path)
    (tmp_path / "ckpt-1.index").unlink()
    with pytest.raises(OptionError, match="is no checkpoint that Resume can read: choose another folder"):
        fit(tiny(), stream(windows), tmp_path)


def test_several_workers_are_refused(windows: str, tmp_path: Path) -> None:
    from reader import Resume

    data = stream(windows)
    resume = Resume(tmp_path, data)
    strategy = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)
    resume.set_model(SimpleNamespace(distribute_strategy=strategy))
    resume.set_params({"steps": STEPS})
    with pytest.raises(OptionError, match="Resume cannot tell several workers apart"):
        resume.on_train_begin()


def test_other_data_than_resume_was_given_is_refused(windows: str, tmp_path: Path) -> None:
    from reader import Resume

    data = stream(windows)
    message = "fit takes 7 steps for an epoch, and the stream has 22: give fit the dataset that Resume was given"
    with pytest.raises(OptionError, match=re.escape(message)):
        tiny().fit(data, steps_per_epoch=7, shuffle=False, verbose=0, callbacks=[Resume(tmp_path, data)])


def test_the_example_goes_on_where_it_was_killed(windows: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), windows, "--run", str(tmp_path), "--batch_size", "8", "--every", "3"]
    with subprocess.Popen(
        [*command, "--epochs", "2000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as first:
        while not list(tmp_path.glob("ckpt-1?.index")):  # the second epoch
            assert first.poll() is None
            time.sleep(0.01)
        first.kill()
    done = subprocess.run([*command, "--epochs", "4"], capture_output=True, text=True, check=True, timeout=120)
    assert re.search(r"^goes on at epoch [234], step \d+$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^loss: 0\.\d{6}$", done.stdout, re.MULTILINE), done.stdout
